"""Malformed table files, each with parts of the error that a reader gets."""

import json

from neuroshard_pipeline.tables.table import REUSE_COLUMNS

HEAD = "table,num_embeddings,embedding_dim,pooling_factor"
PROFILE_HEAD = f"{HEAD},unique_rows,{','.join(REUSE_COLUMNS)}"
ONCE = "1" + ",0" * 16
GOOD_ROW = "a,1000,16,2.5"
GOOD_RECORD = {"table": "a", "num_embeddings": 1000, "embedding_dim": 16, "pooling_factor": 2.5}


def csv(*lines):
    return "\n".join(lines) + "\n"


#: Content of the file, and parts of the message: the position, the column or value, and the remedy.
BAD_CSV = {
    "empty file": ("", ["the file is empty", "one row per table"]),
    "blank lines only": ("\n \n\n", ["the file is empty"]),
    "header only": (csv(HEAD), ["holds no tables", "one row per table"]),
    "missing column": (
        csv("table,num_embeddings,embedding_dim", "a,10,8"),
        ["'pooling_factor' is missing", "required columns are"],
    ),
    "no header": (csv(GOOD_ROW, "b,10,8,1"), ["unknown columns 'a'", "missing columns are table"]),
    "two misspelt columns": (
        csv("table,num_embedings,embedding_dm,pooling_factor", GOOD_ROW),
        ["'num_embedings' (did you mean 'num_embeddings'?), 'embedding_dm' (did you mean 'embedding_dim'?)", "rename"],
    ),
    "another name": (
        csv("table,rows,embedding_dim,pooling_factor", GOOD_ROW),
        ["'rows'", "missing columns are num_embeddings", "rename"],
    ),
    "misspelt column": (
        csv("table,num_embedings,embedding_dim,pooling_factor", GOOD_ROW),
        ["'num_embedings'", "did you mean 'num_embeddings'"],
    ),
    "misspelt optional column, another is missing": (
        csv("table,num_embeddings,embedding_dim,Cache_load_factor", GOOD_ROW),
        ["did you mean 'cache_load_factor'"],
    ),
    "upper-case column": (
        csv("Table,num_embeddings,embedding_dim,pooling_factor", GOOD_ROW),
        ["'Table'", "did you mean 'table'"],
    ),
    "unknown column": (csv(HEAD + ",colour", GOOD_ROW + ",red"), ["unknown column 'colour'", "delete"]),
    "column twice": (csv(HEAD + ",table", GOOD_ROW + ",b"), ["line 1", "'table' occurs 2 times", "keep one"]),
    "column without a name": (csv(HEAD + ",", GOOD_ROW + ",1"), ["line 1", "column 5 has no name"]),
    "semicolons": (
        csv(HEAD.replace(",", ";"), GOOD_ROW.replace(",", ";")),
        ["line 1", "separated by semicolons", "commas"],
    ),
    "tabs": (csv(HEAD.replace(",", "\t"), GOOD_ROW.replace(",", "\t")), ["separated by tabs"]),
    "too few values": (csv(HEAD, GOOD_ROW, "b,10,8"), ["line 3 has 3 values", "4 columns", "one value per column"]),
    "too many values": (csv(HEAD, "a,1,000,16,2.5"), ["line 2 has 5 values", "no commas inside numbers"]),
    "line numbers count blank lines": (csv(HEAD, GOOD_ROW, "", "", "b,x,8,1"), ["line 5", "'num_embeddings'", "'x'"]),
    "line numbers count quoted breaks": (csv(HEAD, '"a\nb",10,8,1', "c,10,8,y"), ["line 4", "'y'"]),
    "open quote": (csv(HEAD, '"a,10,8,1'), ["quotes"]),
    "text for a number": (
        csv(HEAD, "a,many,16,2.5"),
        ["line 2", "'num_embeddings'", "'many' is not a number", "digits only, such as 1000"],
    ),
    "number with separators": (csv(HEAD, 'a,"1,000,000",16,2.5'), ["'1,000,000'", "without separators"]),
    "number with underscores": (csv(HEAD, "a,1_000,16,2.5"), ["'1_000'", "without separators"]),
    "number with unit": (csv(HEAD, "a,40M,16,2.5"), ["'40M' is not a number"]),
    "hexadecimal": (csv(HEAD, "a,0x10,16,2.5"), ["'0x10' is not a number"]),
    "empty cell": (csv(HEAD, "a,,16,2.5"), ["line 2", "'num_embeddings'", "is empty"]),
    "empty name": (csv(HEAD, " ,10,16,2.5"), ["line 2", "'table'", "is empty", "unique name"]),
    "nan": (csv(HEAD, "a,10,16,nan"), ["line 2", "'pooling_factor'", "'nan' is not a finite number"]),
    "infinite": (csv(HEAD, "a,10,16,inf"), ["'inf' is not a finite number"]),
    "overflowing": (csv(HEAD, "a,1e999,16,1"), ["'1e999' is not a finite number"]),
    "zero rows": (csv(HEAD, "a,0,16,2.5"), ["line 2", "'a'", "num_embeddings 0", "from 1 to"]),
    "negative rows": (csv(HEAD, GOOD_ROW, "b,-5,16,2.5"), ["line 3", "num_embeddings -5"]),
    "absurd rows": (
        csv(HEAD, "a,99999999999999999,16,1"),
        ["num_embeddings 99999999999999999", "from 1 to"],
    ),
    "fractional rows": (csv(HEAD, "a,10.5,16,2.5"), ["line 2", "'num_embeddings'", "'10.5' is not a whole number"]),
    "fractional dimension": (csv(HEAD, "a,10,16.5,2.5"), ["'embedding_dim'", "'16.5'"]),
    "dimension not a multiple of 4": (csv(HEAD, "a,10,18,2.5"), ["line 2", "embedding_dim 18", "pad the table to 20"]),
    "zero dimension": (csv(HEAD, "a,10,0,2.5"), ["embedding_dim 0"]),
    "absurd dimension": (csv(HEAD, "a,10,65536,2.5"), ["embedding_dim 65536"]),
    "zero pooling factor": (csv(HEAD, "a,10,16,0"), ["pooling_factor 0.0", "above 0"]),
    "negative pooling factor": (csv(HEAD, "a,10,16,-1"), ["pooling_factor -1.0"]),
    "absurd pooling factor": (csv(HEAD, "a,10,16,1e12"), ["pooling_factor 1000000000000.0", "at most"]),
    "name twice": (
        csv(HEAD, GOOD_ROW, "b,1,4,1", GOOD_ROW),
        ["line 4", "'a' already occurs in line 2", "unique name"],
    ),
    "unknown data type": (
        csv(HEAD + ",data_type", GOOD_ROW + ",int4"),
        ["line 2", "data_type 'int4'", "use one of fp32"],
    ),
    "unknown pooling": (csv(HEAD + ",pooling", GOOD_ROW + ",max"), ["line 2", "pooling 'max'", "use one of sum, mean"]),
    "features are text": (csv(HEAD + ",num_features", GOOD_ROW + ",two"), ["line 2", "'num_features'", "'two' is not"]),
    "no features": (
        csv(HEAD + ",num_features", GOOD_ROW + ",0"),
        ["line 2", "num_features 0", "from 1 to"],
    ),
    "weighted is a word": (
        csv(HEAD + ",is_weighted", GOOD_ROW + ",yes"),
        ["line 2", "'yes' is neither true nor false"],
    ),
    "part of a profile": (
        csv(HEAD + ",unique_rows,reuse_00", GOOD_ROW + ",5,1"),
        ["'reuse_01' is missing", "or none of these columns"],
    ),
    "profile without unique rows": (
        csv(f"{HEAD},{','.join(REUSE_COLUMNS)}", f"{GOOD_ROW},{ONCE}"),
        ["'unique_rows' is missing"],
    ),
    "hole in a profile": (
        csv(PROFILE_HEAD, f"{GOOD_ROW},5,1,," + "0," * 14 + "0"),
        ["line 2", "'reuse_01'", "is empty while"],
    ),
    "shares above one": (
        csv(PROFILE_HEAD, f"{GOOD_ROW},5,50,50" + ",0" * 15),
        ["line 2", "reuse_00 50.0 is not a share"],
    ),
    "negative share": (
        csv(PROFILE_HEAD, f"{GOOD_ROW},5,1,-0.5,0.5" + ",0" * 14),
        ["line 2", "reuse_01 -0.5 is not a share"],
    ),
    "shares do not sum to one": (
        csv(PROFILE_HEAD, f"{GOOD_ROW},5,0.5" + ",0" * 16),
        ["line 2", "sum to 0.5000", "divide them"],
    ),
    "share is text": (csv(PROFILE_HEAD, f"{GOOD_ROW},5,all" + ",0" * 16), ["'reuse_00'", "'all' is not a number"]),
    "more unique rows than rows": (
        csv(PROFILE_HEAD, f"{GOOD_ROW},1001,{ONCE}"),
        ["unique_rows 1001.0", "at most num_embeddings 1000"],
    ),
    "no unique rows": (csv(PROFILE_HEAD, f"{GOOD_ROW},0,{ONCE}"), ["unique_rows 0.0", "above 0"]),
}

BAD_JSON = {
    "empty": ("", ["the file is empty"]),
    "not JSON": ("[{]", ["line 1, column 3", "not valid JSON"]),
    "cut off": ('[{"table": "a",\n "num', ["line 2", "not valid JSON"]),
    "an object": (json.dumps(GOOD_RECORD), ["a JSON object, not a list", "list of records"]),
    "a number": ("3", ["a JSON number, not a list"]),
    "a list of numbers": ("[1, 2]", ["record 1 is a JSON number, not an object"]),
    "a list of lists": (json.dumps([GOOD_RECORD, ["b", 1]]), ["record 2 is a JSON list"]),
    "an empty list": ("[]", ["holds no tables"]),
    "nested too deeply": ("[" * 100_000, ["not usable JSON"]),
    "a string for a number": (
        json.dumps([{**GOOD_RECORD, "embedding_dim": "wide"}]),
        ["record 1", "'embedding_dim'", "'wide'"],
    ),
    "a list for a number": (json.dumps([{**GOOD_RECORD, "embedding_dim": [8]}]), ["record 1", "[8] is not a number"]),
    "true for a number": (json.dumps([{**GOOD_RECORD, "num_embeddings": True}]), ["record 1", "True is not a number"]),
    "null for a number": (json.dumps([{**GOOD_RECORD, "num_embeddings": None}]), ["'num_embeddings'", "is empty"]),
    "NaN": (json.dumps([{**GOOD_RECORD, "pooling_factor": float("nan")}]), ["nan is not a finite number"]),
    "too large": (json.dumps([{**GOOD_RECORD, "pooling_factor": 10**400}]), ["... is not a finite number"]),
    "too large for a float": (
        json.dumps([{**GOOD_RECORD, "num_embeddings": 10**401}]),
        ["record 1", "is not a finite number"],
    ),
    "a fraction": (json.dumps([{**GOOD_RECORD, "num_embeddings": 0.5}]), ["0.5 is not a whole number"]),
    "a name that is a list": (json.dumps([{**GOOD_RECORD, "table": ["a"]}]), ["'table'", "is not a string"]),
    "a data type that is a number": (
        json.dumps([{**GOOD_RECORD, "data_type": 32}]),
        ["record 1", "data_type '32' is unknown"],
    ),
    "a record without a value": (
        json.dumps([GOOD_RECORD, {"table": "b"}]),
        ["record 2", "'num_embeddings'", "is empty"],
    ),
    "an unknown key": (json.dumps([GOOD_RECORD, {**GOOD_RECORD, "table": "b", "dim": 8}]), ["'dim' in record 2"]),
    "a name twice": (json.dumps([GOOD_RECORD, GOOD_RECORD]), ["record 2", "already occurs in record 1"]),
}
