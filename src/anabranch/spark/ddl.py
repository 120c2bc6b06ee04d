"""Types as people write them: `speed DOUBLE, line STRING, stops ARRAY<STRUCT<name: STRING>>`.

Spark reads such texts in Java alone, and says of one that is wrong no more than where, in a longer
text that its writer never saw. A source's columns are asked for in a process without Java.
"""

import re

from pyspark.sql import types as t

from anabranch.core.errors import LocalError

MAX_DEPTH = 32  # types within types
MAX_DIGITS = 38  # of a decimal

_SIMPLE: dict[str, t.DataType] = {
    "boolean": t.BooleanType(),
    "tinyint": t.ByteType(),
    "byte": t.ByteType(),
    "smallint": t.ShortType(),
    "short": t.ShortType(),
    "int": t.IntegerType(),
    "integer": t.IntegerType(),
    "bigint": t.LongType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "real": t.FloatType(),
    "double": t.DoubleType(),
    "string": t.StringType(),
    "binary": t.BinaryType(),
    "date": t.DateType(),
    "timestamp": t.TimestampType(),
    "timestamp_ltz": t.TimestampType(),
    "timestamp_ntz": t.TimestampNTZType(),
}
_DECIMAL = ("decimal", "dec", "numeric")
_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+)|('(?:[^'\\]|\\.)*')|(\S))")


def parse_ddl(text: str) -> t.StructType:
    """Return the type that a text names; raise LocalError, which says what is wrong, otherwise."""
    return _Reader(text).read()


class _Reader:
    """Reads a text from its beginning to its end."""

    def __init__(self, text: str) -> None:
        # Of each word: how it is written, what it stands for, and whether it can be a name.
        self._words: list[tuple[str, str, bool]] = []
        for found in _TOKEN.finditer(text):
            quoted, word, _, _ = found.groups()
            name = quoted.replace("``", "`") if quoted is not None else word or ""
            self._words.append((found[0].strip(), name, bool(name)))
        self._at = 0

    def read(self) -> t.StructType:
        fields = self._fields(0, "")
        if self._at < len(self._words):
            raise self._wrong("a comma or the end")
        return fields

    def _fields(self, depth: int, end: str) -> t.StructType:
        """Read fields up to a bracket, or to the end."""
        fields: list[t.StructField] = []
        while not (end and not fields and self._next() == end):
            name = self._name()
            if self._next() == ":":
                self._at += 1
            kind = self._type(depth)
            nullable = not self._take("not", "null")
            if self._take("comment"):
                self._at += 1
            fields.append(t.StructField(name, kind, nullable))
            if not self._take(","):
                break
        return t.StructType(fields)

    def _type(self, depth: int) -> t.DataType:
        if depth > MAX_DEPTH:
            raise LocalError(f"the option valueSchema has types within types, over {MAX_DEPTH}")
        word = self._next()
        if word in _SIMPLE:
            self._at += 1
            return _SIMPLE[word]
        if word in _DECIMAL:
            self._at += 1
            return self._decimal()
        if word not in ("array", "map", "struct"):
            raise self._wrong("a type such as STRING, BIGINT, DOUBLE or ARRAY<STRING>")
        self._at += 1
        self._need("<")
        kind: t.DataType
        if word == "array":
            kind = t.ArrayType(self._type(depth + 1))
        elif word == "map":
            key = self._type(depth + 1)
            self._need(",")
            kind = t.MapType(key, self._type(depth + 1))
        else:
            kind = self._fields(depth + 1, ">")
        self._need(">")
        return kind

    def _decimal(self) -> t.DecimalType:
        numbers = [10, 0]
        if self._take("("):
            for place in range(2):
                if not self._next().isdecimal():
                    raise self._wrong("a number of digits")
                numbers[place] = int(self._next())
                self._at += 1
                if not self._take(","):
                    break
            self._need(")")
        precision, scale = numbers
        if not scale <= precision <= MAX_DIGITS:
            raise LocalError(
                f"the option valueSchema has DECIMAL({precision}, {scale}): at most {MAX_DIGITS} "
                "digits, of which some may be behind the point"
            )
        return t.DecimalType(precision, scale)

    def _name(self) -> str:
        if self._at == len(self._words) or not self._words[self._at][2]:
            raise self._wrong("the name of a field")
        self._at += 1
        return self._words[self._at - 1][1]

    def _next(self) -> str:
        return self._words[self._at][0].lower() if self._at < len(self._words) else ""

    def _take(self, *words: str) -> bool:
        """Go past some words, if they come next."""
        found = tuple(word.lower() for word, _, _ in self._words[self._at : self._at + len(words)])
        if found == words:
            self._at += len(words)
        return found == words

    def _need(self, word: str) -> None:
        if not self._take(word):
            raise self._wrong(f"'{word}'")

    def _wrong(self, wanted: str) -> LocalError:
        before = " ".join(word for word, _, _ in self._words[max(0, self._at - 3) : self._at])
        there = f"'{self._words[self._at][0]}'" if self._at < len(self._words) else "its end"
        place = f"after '{before}'" if before else "at its beginning"
        return LocalError(
            f"the option valueSchema has {there} {place}, where {wanted} should be: write it like "
            "'speed DOUBLE, line STRING', or as schema.json()"
        )
