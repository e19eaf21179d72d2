"""Fields of settings that hold a component, as `method.name=fedavg` and the method's own fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BeforeValidator, PlainSerializer, PlainValidator

from raysim.api.components import C, Component, Registry, build_component
from raysim.errors import SettingsError, visible


def component_field(
    registry: Registry[C], number: str = ""
) -> tuple[BeforeValidator, PlainSerializer]:
    """Return the annotations of a field that holds a component of a registry.

    Args:
        registry: The registry.
        number: The setting that is meant by a number in place of the component, if there is one.
    """

    def build(value: Any) -> Any:
        if isinstance(value, Component):
            return value
        name = value.get("name") if isinstance(value, Mapping) else value
        if isinstance(value, Mapping) and name is None:
            name = registry.default  # an override `none` is read as None, too
        if not isinstance(value, Mapping) or not isinstance(name, str):
            key = f"{registry.kind}.name" if isinstance(value, Mapping) else registry.kind
            meant = f"{registry.kind}.name" if isinstance(value, str) else ""
            meant = number if type(value) in (int, float) else meant
            hint = f"; did you mean {meant}={name}?" if meant else ""
            raise SettingsError(
                f"{key}={json.dumps(name, default=str)}: {registry.kind}.name must be the name of"
                f" a {registry.kind}{visible(hint)}"
            )
        fields = {key: item for key, item in value.items() if key != "name"}
        return build_component(registry.get(name), fields, f"{registry.kind}.", named=True)

    return BeforeValidator(build), PlainSerializer(lambda value: value.settings())


def ordered_field(registry: Registry[C], group: str) -> tuple[PlainValidator, PlainSerializer]:
    """Return the annotations of a field that maps names of components to them, in order.

    Args:
        registry: The components.
        group: The field's name in the settings, as in `channel.clip.norm=1`.
    """

    def build(value: Any) -> dict[str, C]:
        if value is None:
            return {}  # the override `none`
        if not isinstance(value, Mapping):
            text = json.dumps(value, default=str)
            raise SettingsError(f"{group}={text}: must map each {registry.kind} to its settings")
        return {str(name): component(str(name), settings) for name, settings in value.items()}

    def component(name: str, value: Any) -> C:
        kind = registry.get(name, f"{group}.{visible(name)}")
        if isinstance(value, kind):
            return value
        if not isinstance(value, Mapping):
            text = json.dumps(value, default=str)
            raise SettingsError(
                f"{group}.{name}={text}: must be its settings; {{}} for its defaults"
            )
        return build_component(kind, value, f"{group}.{name}.")

    def written(value: Mapping[str, C]) -> dict[str, Any]:
        return {name: entry.model_dump(mode="json") for name, entry in value.items()}

    return PlainValidator(build), PlainSerializer(written)
