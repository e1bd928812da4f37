"""Sources of settings: arguments, then environment variables, then a configuration file, then defaults."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, PrivateAttr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from penstock.producer.settings_file import SettingsFile

PREFIX = "PENSTOCK_"


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
    return {name for cls in owners for name in cls.model_fields} - {"config"}


def _subclasses(cls: type[FileSettings]) -> Iterator[type[FileSettings]]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
