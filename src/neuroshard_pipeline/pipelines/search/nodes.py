"""Nodes of the search stage."""

from __future__ import annotations

from typing import Any

import pandas as pd
