"""The configuration file: TOML, with one table for each part of penstock. Read below environment and arguments."""

import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self

TABLES = ("kafka", "worker", "client")  # of connections; of workers; of clients, `embed` and `classify`
_SHOWN_TABLES = "[kafka], [worker] and [client]"
_HEADER = re.compile(r"\s*\[\s*([\w-]+)\s*\]")


class SettingsFileError(ValueError):
    """A configuration file that cannot be read, or holds a key that is no setting. Names the file and the line."""


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A file that was read. Its values are not validated yet."""

    path: Path
    tables: Mapping[str, Mapping[str, object]]
    lines: Sequence[str]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises SettingsFileError if the file is missing, is not TOML, or has other tables."""
        try:
            text = path.read_text(encoding="utf-8-sig")
            content: dict[str, Any] = tomllib.loads(text)
        except OSError as error:
            raise SettingsFileError(f"{path}: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise SettingsFileError(f"{path}: is not UTF-8, at byte {error.start}.") from error
        except tomllib.TOMLDecodeError as error:
            raise SettingsFileError(f"{path}: is not TOML: {error}.") from error
        file = cls(path, content, text.splitlines())
        for name, value in content.items():
            if not isinstance(value, dict):
                raise SettingsFileError(f"{file.place('', name)}: {name} is outside of {_SHOWN_TABLES}.")
            if name not in TABLES:
                raise SettingsFileError(
                    f"{file.place(name)}: there is no table [{name}].{_nearest(name, TABLES, '[{}]')} "
                    f"The tables are {_SHOWN_TABLES}."
                )
        return file

    def values(self, tables: Mapping[str, Collection[str]], wanted: Collection[str]) -> dict[str, object]:
        """The values of the wanted settings. The last of `tables`, which maps names to known keys, has precedence.

        Raises SettingsFileError for a key of these tables that is not known.
        """
        found: dict[str, object] = {}
        for table, known in tables.items():
            for key, value in self.tables.get(table, {}).items():
                if key not in known:
                    raise SettingsFileError(
                        f"{self.place(table, key)}: {key} is no setting of [{table}].{_hint(key, table, tables)}"
                    )
                if key in wanted:
                    found[key] = value
        return found

    def table_of(self, key: str, tables: Collection[str]) -> str:
        """The table that decides a setting: the last one that has it. Empty if none has."""
        return next((table for table in reversed(list(tables)) if key in self.tables.get(table, {})), "")

    def place(self, table: str, key: str = "") -> str:
        """`penstock.toml, line 7`. Without the line where the text does not show it, as in an inline table."""
        found = [number for number, (at, name) in enumerate(self._statements(), 1) if (at, name) == (table, key)]
        return f"{self.path}, line {found[0]}" if len(found) == 1 else str(self.path)

    def _statements(self) -> Sequence[tuple[str, str]]:
        """Table and key of each line; no key for a table's header."""
        table, statements = "", []
        for line in self.lines:
            if header := _HEADER.match(line):
                table = header[1]
                statements.append((table, ""))
                continue
            dotted = re.match(r"\s*([\w-]+)\s*\.\s*([\w-]+)\s*=", line)
            plain = re.match(r"""\s*["']?([\w-]+)["']?\s*=""", line)
            if dotted and not table:
                statements.append((dotted[1], dotted[2]))
            else:
                statements.append((table, plain[1] if plain else "\n"))
        return statements


def _hint(key: str, table: str, tables: Mapping[str, Collection[str]]) -> str:
    elsewhere = [other for other, known in tables.items() if other != table and key in known]
    return f" It belongs to [{elsewhere[0]}]." if elsewhere else _nearest(key, tables[table], "{}")


def _nearest(name: str, known: Collection[str], form: str) -> str:
    near = get_close_matches(name.replace("-", "_"), sorted(known), 1)
    return f" Did you mean {form.format(near[0])}?" if near else ""
