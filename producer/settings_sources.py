"""Sources of settings: arguments, then environment variables, then a configuration file, then defaults.

The configuration file is TOML, with one table for each part of penstock.
"""

import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, PrivateAttr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

PREFIX = "PENSTOCK_"
FILE_ONLY = "table of the file"  # the metavar of a field that is no option
LISTS = ("routes",)  # lists of tables, each a setting of its own
TABLES = ("kafka", "worker", "client")  # of connections; of workers; of clients, `embed` and `classify`
_SHOWN_TABLES = "[kafka], [worker] and [client]"
_HEADER = re.compile(r"\s*\[\s*([\w-]+)\s*\]")


class Settings(BaseSettings):
    """Base of all settings. Each field is also an environment variable: PENSTOCK_ and its name in capitals."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,  # it may hold a password
    )

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._origins = {name: type(self).origin_of(name, given) for name in self.model_fields_set}

    @property
    def origins(self) -> Mapping[str, str]:
        """For each setting that has no default value: `given`, `environment` or `file …`."""
        return self._origins

    @classmethod
    def origin_of(cls, name: str, given: Mapping[str, Any]) -> str:
        """Origin of a setting that is not left at its default. `given`: the arguments of the constructor."""
        if name in given:
            return "given"
        return "environment" if _from_environment(name) else f"file {config_path(given)}"


class FileSettings(Settings):
    """Base of the settings that a configuration file may hold."""

    table: ClassVar[str]  # where a file holds the fields that a class adds

    config: Path | None = Field(
        None,
        description="Configuration file (TOML) with the tables [kafka], [worker] and [client]. Options and environment "
        "variables override it.",
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Called by pydantic-settings. The first source has precedence."""
        return init_settings, env_settings, _FileSource(settings_cls)

    @classmethod
    def tables(cls) -> dict[str, set[str]]:
        """Tables that this class reads, with their keys. The last one has precedence."""
        names = dict.fromkeys(base.__dict__["table"] for base in reversed(cls.__mro__) if "table" in base.__dict__)
        return {name: _keys_of(name) for name in names}

    @classmethod
    def place_of(cls, name: str, given: Mapping[str, Any]) -> str:
        """`penstock.toml, line 7: [worker] lanes`, for a setting that comes from a file; else empty."""
        path = config_path(given)
        if path is None or not cls.origin_of(name, given).startswith("file "):
            return ""
        file = SettingsFile.read(path)
        table = file.table_of(name, cls.tables())
        return f"{file.place(table, name)}: [{table}] {name}" if table else ""


class _FileSource(PydanticBaseSettingsSource):
    """The values of the file that the setting `config` names, which the other sources have decided."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        raise NotImplementedError("All values are read at once. This is a bug.")

    def __call__(self) -> dict[str, Any]:
        path = self.current_state.get("config")
        if not isinstance(path, str | Path):
            return {}
        assert issubclass(self.settings_cls, FileSettings)
        return SettingsFile.read(Path(path)).values(self.settings_cls.tables(), self.settings_cls.model_fields)


def env_name(field: str) -> str:
    """`max_wait_ms` -> `PENSTOCK_MAX_WAIT_MS`."""
    return PREFIX + field.upper()


def config_path(given: Mapping[str, Any]) -> Path | None:
    """The configuration file, as the constructor of settings finds it; None without one."""
    path = given["config"] if "config" in given else _from_environment("config")
    return Path(path) if path else None


def _from_environment(field: str) -> str:
    return next((value for name, value in os.environ.items() if name.upper() == env_name(field) and value), "")


def _keys_of(table: str) -> set[str]:
    owners = [cls for cls in _subclasses(FileSettings) if cls.__dict__.get("table") == table]
    return {name for cls in owners for name in cls.model_fields} - {"config", *LISTS}


def _subclasses(cls: type[FileSettings]) -> Iterator[type[FileSettings]]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


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
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise SettingsFileError(f"{path}: is not TOML: {error}.") from error
        file = cls(path, content, text.splitlines())
        for name, value in content.items():
            if name in LISTS and isinstance(value, list):
                continue
            if name in LISTS:
                raise SettingsFileError(f"{file.place(name)}: {name} is a list of tables: write [[{name}]].")
            if not isinstance(value, dict):
                raise SettingsFileError(f"{file.place('', name)}: {name} is outside of {_SHOWN_TABLES}.")
            if name not in TABLES:
                raise SettingsFileError(
                    f"{file.place(name)}: there is no table [{name}].{_nearest(name, TABLES, '[{}]')} "
                    f"The tables are {_SHOWN_TABLES}, and [[routes]]."
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
        return found | {name: self.tables[name] for name in LISTS if name in wanted and name in self.tables}

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
