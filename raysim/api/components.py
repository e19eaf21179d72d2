"""Components: methods, datasets, partitions and models, and the registries that name them.

A component is a frozen, validated pydantic model: its fields are its settings. It is named in
settings either by its registered name or as `package.module:Class`, so a user's own class needs no
change here. Registries hold import paths, not classes: a component's module is imported when it is
asked for.

A user's own component may fail in any way. `Registry.get`, `build_component` and `call` turn a
failure into one line that names the class and its expected behaviour.
"""

from __future__ import annotations

import json
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from difflib import get_close_matches
from functools import cached_property
from inspect import getattr_static, isabstract
from pathlib import Path
from types import FunctionType, UnionType
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo

from raysim.errors import RaysimError, RuleError, SettingsError, visible
from raysim.user_input.group import SettingsGroup
from raysim.user_input.user_modules import TARGET, allow, import_named, unnamed


class Component(BaseModel):
    """Base of methods, datasets, partitions and models; its fields are its settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    _lasting: ClassVar[str] = ""
    """Advice on where lasting values of a kind belong; empty if components may hold them."""
    _promises: ClassVar[tuple[str, ...]] = ()
    """Names of a kind's promises. Each holds for the class that states it, and for subclasses that
    change only settings."""
    _claims: ClassVar[tuple[str, ...]] = ()
    """Promises that users see in results; the engine refuses a class that loses one."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Take back the promises of a base if this class changes the code that they rest on."""
        super().__pydantic_init_subclass__(**kwargs)
        cls._take_back()

    @classmethod
    def _take_back(cls) -> None:
        for promise in (*cls._promises, *cls._claims):
            stating = [kind for kind in cls.__mro__ if _states(kind, promise)]
            place = cls.__mro__.index(stating[0])
            before, behind = cls.__mro__[:place], cls.__mro__[place:]
            bases = stating[0].__mro__
            beside = [kind for kind in behind if kind not in bases]  # whose code `super` finds
            changed = [name for kind in before for name in _replaced(behind, kind)]
            changed += [name for kind in beside for name in _replaced(bases, kind)]
            if changed and stating[1:]:
                setattr(cls, promise, _Lost(promise, stating, changed[0]))

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse attributes: a run would lose them, and fields are settings, which stay."""
        if self._lasting:
            raise SettingsError(f"{called(self)}: sets {name}, which {_LOST}: {self._lasting}")
        super().__setattr__(name, value)

    def settings(self) -> dict[str, Any]:
        """Return this component's settings: its name and its fields."""
        return {"name": name_of(type(self)), **self.model_dump(mode="json")}

    @property
    def title(self) -> str:
        """Name of this component in settings."""
        return name_of(type(self))


class Acting(Component):
    """Base of components with code that decides a run's bits."""

    revision: ClassVar[int] = 1
    """Raised when the same settings give other bits; a run resumes in its own revision only."""


FREE = ("revision", "title", "settings", "model_config", "model_post_init")
"""Attributes that a class may change, besides settings, without losing its base's promises."""


def _states(kind: type, promise: str) -> bool:
    """Return whether the body of a class states a promise."""
    return promise in vars(kind) and not isinstance(vars(kind)[promise], _Lost)


def _replaced(bases: Sequence[type], kind: type) -> list[str]:
    """Return the names of the code and fields of bases that the body of a class replaces."""
    named = [n for n, value in vars(kind).items() if not isinstance(value, _Lost)]
    named = [n for n in named if not n.startswith(("__", "_abc_")) or n == "__getattribute__"]
    named = [n for n in named if n not in FREE]
    known = {n for base in bases for n in (*vars(base), *getattr(base, "model_fields", ()))}
    return [n for n in named if n in known]


class _Lost:
    """Promise of a base that a class has lost.

    It gives the kind's own value of the attribute; for a claim, it raises an error.

    Attributes:
        why: The cause, and the remedy.
    """

    def __init__(self, promise: str, stating: Sequence[type], changed: str) -> None:
        self._promise, self._base, self._kind = promise, stating[0], stating[-1]
        self.why = (
            f"it changes {changed!r} of {stating[0].__name__}, which {promise!r} rests on; leave"
            f" that as it is, or state {promise!r} in the class itself"
        )

    def __get__(self, component: Component | None, kind: type[Component]) -> Any:
        """Return the kind's own value.

        Raises:
            SettingsError: the component makes a claim that does not hold.
        """
        if component is None:
            return self
        if self._promise not in kind._claims:
            return _of(self._kind, self._promise, component)
        if claim := _of(self._base, self._promise, component):
            raise SettingsError(f"{called(component)}: {self.why}")
        return claim


def _of(kind: type, name: str, component: Component) -> Any:
    """Return a component's value of an attribute as one of its bases has it."""
    value = vars(kind)[name]
    return value.__get__(component) if hasattr(value, "__get__") else value


def why_lost(component: Component, promise: str) -> str:
    """Return why a component has lost a promise of its base, after a colon; empty if it has not.

    Args:
        component: The component.
        promise: The name of the promise.
    """
    stated = getattr_static(type(component), promise)
    return f": {stated.why}" if isinstance(stated, _Lost) else ""


def set_apart(component: Component) -> list[str]:
    """Return the attributes of a component that neither are settings nor come from its class."""
    kind = type(component)
    return [
        name
        for name in vars(component)
        if name not in kind.model_fields
        and not isinstance(getattr_static(kind, name, None), cached_property)
    ]


def set_on_classes(component: Component) -> list[str]:
    """Return the functions of other packages that raysim's classes of a component have.

    They were set from outside, as by `Mean.combine = my_function`.
    """
    kinds = [kind for kind in type(component).__mro__ if _is_own(kind)]
    functions = [
        (name, _function_of(value)) for kind in kinds for name, value in vars(kind).items()
    ]
    return [
        name
        for name, function in functions
        if function and not name.startswith("__") and not _is_own(function)
    ]


def _is_own(defined: type | FunctionType) -> bool:
    return defined.__module__.partition(".")[0] == __name__.partition(".")[0]


def _function_of(value: Any) -> FunctionType | None:
    """Return the function of a method or property of a class; None of anything else."""
    inner = getattr(value, "fget", None) or getattr(value, "__func__", value)
    return inner if isinstance(inner, FunctionType) else None


C = TypeVar("C", bound=Component)
_LOST = "a resumed run would lose"
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_LIBRARIES = (Path(__file__).parents[1], Path(sysconfig.get_paths()["stdlib"]))
V = TypeVar("V")
_NAMES: dict[str, str] = {}
_KEYS: dict[type[Component], str] = {}
_REGISTRIES: dict[type[Any], Registry[Any]] = {}
MOST_NAMED = 8
"""Most components with a setting that a message names."""


def name_of(component: type[Component]) -> str:
    """Return the registered name of a class, or `package.module:Class`."""
    target = f"{component.__module__}:{component.__qualname__}"
    return _NAMES.get(target, target)


def fields_of(kind: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield the dotted keys of a component's settings with their fields, those of groups too."""
    for key, field in kind.model_fields.items():
        group = field.annotation
        if isinstance(group, type) and issubclass(group, SettingsGroup):
            yield from fields_of(group, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", field


def suggest(word: str, known: list[str], prefix: str = "", listed: Iterable[str] = ()) -> str:
    """Return "did you mean ...?" for a near miss of a known word, with a prefix.

    Else the list of the known words, or of `listed`.
    """
    near = [name for name in known if name == word.lower()] or get_close_matches(word, known, n=1)
    names = ", ".join(listed or known)
    return f"did you mean {prefix + near[0]!r}?" if near else f"known are {names}"


def listed_names(value: Any, known: Iterable[str], kind: str, kinds: str) -> Any:
    """Return a setting of names, a list, or text as `a,b` or `[a,b]`, as a tuple, each once.

    Raises:
        ValueError: a name is unknown.
    """
    if isinstance(value, str):
        value = [name.strip() for name in value.strip("[]").split(",")]
    if not isinstance(value, list | tuple):
        return value
    for name in value:
        if not isinstance(name, str):
            raise ValueError(f"must be names of {kinds}")
        if name not in {*known}:
            raise ValueError(f"{visible(name)!r}: no such {kind}; {suggest(name, [*known])}")
    return tuple(dict.fromkeys(value))


def look_up(kind: str, name: str, known: Mapping[str, V]) -> V:
    """Return the value of a name.

    Raises:
        SettingsError: the name is unknown.
    """
    if name not in known:
        raise SettingsError(f"{visible(name)}: no such {kind}; {suggest(name, sorted(known))}")
    return known[name]


class Registry(Generic[C]):
    """Registered components of one kind, for example "method" or "dataset"."""

    def __init__(self, kind: str, base: type[C], key: str = "", default: str | None = None) -> None:
        """Create an empty registry.

        Args:
            kind: Name of the kind.
            base: Base class of the components.
            key: The setting that names a component, with {} for its name; default `kind.name={}`.
            default: Name of the component for fields without a name.
        """
        self.kind = kind
        self.base = base
        self._key = _KEYS[base] = key or f"{kind}.name={{}}"
        self._targets: dict[str, str] = {}
        self._hints: dict[str, str] = {}
        _REGISTRIES[base] = self
        self.default = default

    def add(self, targets: Mapping[str, str], hints: Mapping[str, str] | None = None) -> None:
        """Register components.

        Args:
            targets: Import paths by name, written `package.module:Class`.
            hints: What to write in place of other names, which are known but no component's.
        """
        self._targets.update(targets)
        self._hints.update(hints or {})
        _NAMES.update({target: name for name, target in targets.items()})

    def setting(self, name: str, field: str) -> str:
        """Return the key of a component's field in the settings."""
        named, equals, _ = self._key.format(name).partition("=")
        return f"{named.rpartition('.')[0] if equals else named}.{field}"

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._targets))

    def get(self, name: str, key: str = "") -> type[C]:
        """Return the class of a registered name or of `package.module:Class`.

        Args:
            name: The name.
            key: The setting that has it, for the error; the default is the kind's setting.

        Raises:
            SettingsError: the name is unknown, or names no component of this kind.
        """
        target = self._targets.get(name, name)
        key = key or self._key.format(visible(name))
        if ":" not in target:
            hint = f"{suggest(name, list(self))} (or package.module:Class)"
            hint = self._hints.get(name.lower().replace("_", "-"), hint)
            if name.endswith(".py"):
                hint = f"name a class of the file: {visible(Path(name).stem)}:Class"
            raise SettingsError(f"{key}: no such {self.kind}; {hint}")
        component = imported(target, key)
        self._check(key, component)
        component._take_back()  # its attributes may have been set after its body
        return component  # type: ignore[no-any-return]

    def _check(self, key: str, component: Any) -> None:
        """Check that a user's class is a component of this kind.

        Raises:
            SettingsError: it is no such class, lacks something, or has a forbidden attribute.
        """
        if not (isinstance(component, type) and issubclass(component, self.base)):
            raise SettingsError(f"{key}: must be a subclass of raysim.{self.base.__name__}")
        if isabstract(component):
            lacking = ", ".join(sorted(component.__abstractmethods__))
            raise SettingsError(
                f"{key}: must define {lacking}, as raysim.{self.base.__name__} says"
            )
        if "name" in component.model_fields:
            raise SettingsError(f"{key}: must not have a field `name`, the component's own name")
        bases = [kind for kind in component.__mro__[1:] if kind is not BaseModel]
        if taken := [n for n in component.model_fields if any(n in vars(kind) for kind in bases)]:
            raise SettingsError(
                f"{key}: has a field `{taken[0]}`, which its base has for no setting; write"
                f" `{taken[0]}: ClassVar[...]`, or choose another name"
            )
        if self.base._lasting and (private := sorted(component.__private_attributes__)):
            raise SettingsError(f"{key}: has {private[0]}, which {_LOST}: {self.base._lasting}")


def imported(target: str, key: str) -> Any:
    """Return what `package.module:name` names.

    Args:
        target: The name.
        key: The setting that has it, for the error.

    Raises:
        SettingsError: it is no such name, or the module cannot be imported, or lacks the name.
    """
    if not (named := TARGET.fullmatch(target)):
        raise SettingsError(f"{key}: must name something of a module, as package.module:name")
    module, name = named.groups()
    allow(module)
    try:
        return getattr(import_named(module), name)
    except (Exception, SystemExit) as error:  # a user's module may do anything
        hint = unnamed(error.name or "") if isinstance(error, ModuleNotFoundError) else ""
        raise SettingsError(f"{key}: cannot be imported: {cause(error)}{hint}") from error


def cause(error: BaseException) -> str:
    """Return an error's type, text and line of the source in one line.

    It is the last line of a user's own source, if there is one: libraries fail where they are used.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen")
    ]
    in_user_code = [frame for frame in frames if not _is_library(Path(frame.filename))]
    last = (in_user_code or ([] if isinstance(error, ImportError) else frames))[-1:]
    place = "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in last)
    text = visible(" ".join(_text_of(error).split()))
    return f"{type(error).__name__}: {text}{place}"


def _is_library(path: Path) -> bool:
    """Return whether a source is of raysim, an installed package or Python."""
    return bool(_INSTALLED.intersection(path.parts)) or any(map(path.is_relative_to, _LIBRARIES))


def _text_of(error: BaseException) -> str:
    """Return the text of an error; for pydantic's on a class with fields, the remedy."""
    if not isinstance(error, PydanticUserError):
        return str(error)
    quoted = [*error.message.split("`"), "", ""][1]
    if error.code == "model-field-missing-annotation":
        name = quoted.partition(" ")[0]
        return (
            f"the field `{quoted}` has no annotation; write its type, as in `{name}: float`, or"
            " ClassVar for a constant"
        )
    if error.code == "schema-for-unknown-type":
        kind = error.message.partition(" for ")[2].partition(". ")[0]
        return f"a field is of a type that no setting has, {kind}"
    return error.message


Hook = TypeVar("Hook", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")
_CONTRACTS: dict[Callable[..., Any], tuple[Any, Any]] = {}


def returns(
    expected: str | Callable[..., str], holds: type | UnionType | Callable[..., object]
) -> Callable[[Hook], Hook]:
    """State the result of a method or property of a base class; `call` checks it.

    Args:
        expected: Description of the result, or a function of component and arguments that gives it.
        holds: Type of a result, or a function of result, component and arguments that checks it.
    """

    def stated(hook: Hook) -> Hook:
        _CONTRACTS[hook] = expected, holds
        return hook

    return stated


def call(
    component: C, hook: Callable[Concatenate[C, P], R], *arguments: P.args, **named: P.kwargs
) -> R:
    """Call a component's method, or read its property, and check the result.

    Args:
        component: The component.
        hook: The method, or without arguments the property, as its base class states it.
        arguments: The method's arguments.
        named: Arguments by name.

    Raises:
        SettingsError: it failed, or returned something else than it states.
    """
    name = _stated(hook).__name__
    with calling(component, name):
        result = getattr(component, name)
        result = result if isinstance(hook, property) else result(*arguments, **named)
    checked_result: R = checked(component, hook, result, *arguments)
    return checked_result


def _stated(hook: Any) -> Any:
    return hook.fget if isinstance(hook, property) else hook


_REFUSALS = ContextVar[list["Refusal"] | None]("refusals", default=None)
"""Refusals in the method of a component that is being called."""


class Refusal(BaseException):
    """Refusal of an action of a component, which the component cannot keep from the engine.

    Its `except Exception` does not catch it; after a bare `except`, `calling` raises it again.
    """

    def __init__(self, line: str) -> None:
        super().__init__(line)
        if (refusals := _REFUSALS.get()) is not None:
            refusals.append(self)


@contextmanager
def calling(component: Component, name: str) -> Iterator[None]:
    """Turn errors of a component's method in the body into one line.

    A full disk or memory is the machine's failure, not the component's.

    Raises:
        RuleError: it read a withheld value.
        SettingsError: it failed.
    """
    before = _REFUSALS.set(refusals := list[Refusal]())
    try:
        yield
    except Refusal as refusal:
        refusals.append(refusal)
    except (RaysimError, MemoryError, OSError):
        raise
    except (Exception, SystemExit) as error:  # a user's class may raise anything
        raise SettingsError(f"{called(component)}: {name} failed: {cause(error)}") from error
    finally:
        _REFUSALS.reset(before)
        if refusals:  # the component may have made another error of it, or none
            raise RuleError(str(refusals[0])) from None


def checked(
    component: C, hook: Callable[Concatenate[C, P], R], result: Any, *arguments: Any
) -> Any:
    """Return the result of a component's method, checked against its statement.

    Raises:
        SettingsError: the result is something else.
    """
    function = _stated(hook)
    expected, holds = _CONTRACTS[function]
    with suppress(Exception):  # of another type, it may lack anything
        is_kind = isinstance(holds, type | UnionType)
        if isinstance(result, holds) if is_kind else holds(result, component, *arguments):
            return result
    words = expected if isinstance(expected, str) else expected(component, *arguments)
    what = f"{function.__name__} returned {shown(result)}; must return {words}"
    raise SettingsError(f"{called(component)}: {what}")


def shown(value: Any) -> str:
    """Return a component's value as one line of a message."""
    return visible(" ".join(repr(value).split()))


def registries() -> list[Registry[Any]]:
    """Return the registries of all kinds of components that are imported."""
    return [*_REGISTRIES.values()]


def called(component: Component) -> str:
    """Return the setting that names a component, `method.name=fedavg`."""
    key = next(key for base, key in _KEYS.items() if isinstance(component, base))
    return key.format(component.title)


def build_component(
    component: type[C], fields: Mapping[str, Any], prefix: str, named: bool = False
) -> C:
    """Return a component with the fields of its settings.

    Args:
        component: Its class.
        fields: Its fields as plain values.
        prefix: Prefix of its fields in the settings, for example `method.`.
        named: Whether the settings have a key `name` next to the fields.

    Raises:
        SettingsError: a field is wrong; the message names it, its value and the allowed range.
    """
    key = f"{prefix}name={name_of(component)}"
    try:  # as JSON, so that lists may become tuples and strings enumerations
        built = component.model_validate_json(json.dumps(fields, default=str))
        json.dumps(built.settings())
    except ValidationError as error:
        more = ["name"] if named else []
        raise SettingsError(explain(error, component, prefix, more)) from error
    except RaysimError:
        raise
    except Exception as error:  # a user's validators and types may raise anything
        raise SettingsError(
            f"{key}: its fields cannot be read from and written as JSON: {cause(error)}"
        ) from error
    return built


def explain(
    error: ValidationError,
    model: type[BaseModel],
    prefix: str = "",
    more: Sequence[str] = (),
    *,
    hints: Mapping[str, str] | None = None,
    elsewhere: Callable[[str], Sequence[str]] = lambda name: (),
) -> str:
    """Return the first validation error in one line.

    Args:
        error: The error.
        model: The validated model.
        prefix: Prefix of its fields in the settings.
        more: Further keys that are allowed.
        hints: What to write in place of some unknown settings, by dotted key.
        elsewhere: Returns the settings of components with a name, by dotted key.
    """
    first = error.errors(include_url=False)[0]
    location = [visible(str(part)) for part in first["loc"]]
    if first["type"] == "extra_forbidden":
        group, key = prefix + "".join(f"{part}." for part in location[:-1]), location[-1]
        known = [*_group_at(model, location[:-1]).model_fields, *more]
        meant = [] if location[1:] else [*elsewhere(key), *_in_groups(model, key, prefix)]
        hint = f"did you mean {meant[0]!r}?" if meant else suggest(key, known, group)
        hint += "" if location[1:] else _of_others(model, key)
        return f"{group}{key}: no such setting; {(hints or {}).get(group + key, hint)}"
    if first["type"] == "missing":
        key = prefix + ".".join(location)
        field = model.model_fields.get(location[0]) if len(location) == 1 else None
        kind: Any = field and field.annotation
        if isinstance(kind, type) and issubclass(kind, Component):
            return f"{key}.name: must be given; raysim list {key}s"
        return f"{key}: must be given"
    fields = _without_union_tags(model, location)
    broken_rule = first.get("ctx", {}).get("error")
    if broken_rule and (not fields or _is_group(model, fields)):  # such a rule names the key itself
        return prefix + ".".join([*fields, str(broken_rule)])
    key = ".".join(fields)
    value = visible(json.dumps(first["input"], default=str))
    allowed = str(broken_rule or _all_alternatives(error, first["input"]))
    return f"{prefix}{key}={value}: {allowed}"


def _all_alternatives(error: ValidationError, value: Any) -> str:
    texts = (
        str(problem.get("ctx", {}).get("error", problem["msg"]))
        for problem in error.errors(include_url=False)
        if problem["input"] is value or problem["input"] == value
    )
    problems = (text.removeprefix("Input should be ").removeprefix("must be ") for text in texts)
    problems = (text.replace("a valid tuple", "a valid list") for text in problems)
    return "must be " + " or ".join(dict.fromkeys(problems))


def _in_groups(model: type[BaseModel], name: str, prefix: str) -> list[str]:
    """Return the settings of a name in groups of a model, by dotted key."""
    groups = {group: _group_at(model, [group]) for group in model.model_fields}
    return [
        f"{prefix}{k}.{name}"
        for k, group_model in groups.items()
        if name in group_model.model_fields and group_model != model
    ]


def _is_group(model: type[BaseModel], fields: list[str]) -> bool:
    return _group_at(model, fields) is not _group_at(model, fields[:-1])


def _group_at(model: type[BaseModel], location: list[str]) -> type[BaseModel]:
    for part in location:
        annotation = model.model_fields[part].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    return model


def _of_others(model: type[BaseModel], key: str) -> str:
    """Return which other components of a component's kind have a setting, in brackets."""
    registry = next((_REGISTRIES[base] for base in model.__mro__ if base in _REGISTRIES), None)
    having = [n for n in registry or () if registry and key in registry.get(n).model_fields]
    more = f" and {len(having) - MOST_NAMED} more" if len(having) > MOST_NAMED else ""
    return f" ({key} is of {', '.join(having[:MOST_NAMED])}{more})" if having else ""


def _without_union_tags(model: type[BaseModel], location: list[str]) -> list[str]:
    fields: list[str] = []
    for part in location:
        if part not in model.model_fields:
            break
        fields.append(part)
        model = _group_at(model, [part])
    return fields
