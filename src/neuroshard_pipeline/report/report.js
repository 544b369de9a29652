// Draws every figure from the JSON that stands beside it in the page. This runs once, after Plotly has been loaded.
(function () {
  "use strict";
  const byMouse = window.matchMedia("(pointer: fine)").matches;
  const config = {
    responsive: true,
    displaylogo: false,
    displayModeBar: byMouse ? "hover" : false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
  };
  const plots = [];
  for (const holder of document.querySelectorAll(".plot")) {
    const spec = JSON.parse(document.getElementById(holder.dataset.spec).textContent);
    spec.layout.autosize = true;
    // A finger that moves over a figure scrolls the page; only a mouse draws a zoom box.
    spec.layout.dragmode = byMouse ? "zoom" : false;
    holder.textContent = "";
    Plotly.newPlot(holder, spec.data, spec.layout, config);
    plots.push(holder);
  }
  // A figure in a closed <details> has no width until the section is opened.
  for (const section of document.querySelectorAll("details")) {
    section.addEventListener("toggle", () =>
      section.querySelectorAll(".plot").forEach((plot) => Plotly.Plots.resize(plot)));
  }
  // Paper is narrower than a screen, and browsers do not resize figures for printing.
  window.addEventListener("beforeprint", () => plots.forEach((plot) => Plotly.relayout(plot, { width: 660 })));
  window.addEventListener("afterprint", () => plots.forEach((plot) => Plotly.relayout(plot, { width: null })));
})();
