"""Types are read as Spark reads them, and what is wrong in one is said."""

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from anabranch.core.errors import LocalError
from anabranch.spark.ddl import MAX_DEPTH, parse_ddl

RIGHT = (
    "n BIGINT",
    "a boolean, b TINYINT, c smallint, d int, e integer, f long, g float, h real, i double",
    "a string, b binary, c date, d timestamp, e timestamp_ntz, f byte, g short, h timestamp_ltz",
    "a DECIMAL, b dec(12), c numeric(38, 10)",
    "`of the line` STRING, `a``b` INT, `1` INT",
    "stops ARRAY<STRUCT<name: STRING, at: TIMESTAMP>>, by MAP<STRING, ARRAY<INT>>",
    "a STRUCT<b INT NOT NULL, c: STRUCT<>>",
    "a INT NOT NULL, b INT COMMENT 'it\\'s', c:INT",
)


def test_what_spark_can_read_is_read_alike(spark: SparkSession) -> None:
    for text in RIGHT:
        expected = StructType.fromDDL(text)
        found = parse_ddl(text)
        assert [(f.name, f.dataType, f.nullable) for f in found.fields] == [
            (f.name, f.dataType, f.nullable) for f in expected.fields
        ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("speed DOUBL", "'DOUBL' after 'speed', where a type such as STRING"),
        ("speed", "its end after 'speed', where a type"),
        ("", "its end at its beginning, where the name of a field"),
        ("a INT b INT", "'b' after 'a INT', where a comma or the end"),
        ("a INT,", "its end after 'a INT ,', where the name"),
        ("a ARRAY<INT", "its end after 'ARRAY < INT', where '>'"),
        ("a MAP<INT>", "'>' after 'MAP < INT', where ','"),
        ("a DECIMAL(x)", r"'x' after 'a DECIMAL \(', where a number"),
        ("a DECIMAL(39)", r"DECIMAL\(39, 0\)"),
        ("a DECIMAL(3, 4)", r"DECIMAL\(3, 4\)"),
        ("'a' INT", "at its beginning, where the name"),
        ("a " + "ARRAY<" * (MAX_DEPTH + 2), "types within types"),
    ],
)
def test_what_is_wrong_is_said(text: str, words: str) -> None:
    with pytest.raises(LocalError, match=words):
        parse_ddl(text)
