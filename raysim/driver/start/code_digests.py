"""Digests of code and of the values that it uses: equal for equal code, in any process.

Code is compiled code, not source: a class in a notebook's cell has no file, and a lambda no source
of its own. Comments and line numbers do not count. The digest of a user's function covers its
defaults, its closure, and the functions, classes and values of its module that it names. Code of
installed packages counts by its name, the package's version and its compiled code.

Names that a function itself rebinds or fills, such as a counter or a log, are state: their values
do not count. Nor do attributes of a class to which the class's own code adds. A value that can be
neither read nor copied, such as a lock or an open file, has no digest.
"""

from __future__ import annotations

import copyreg
import dis
import hashlib
import sys
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, cached_property, lru_cache, singledispatchmethod
from importlib import metadata
from importlib.util import find_spec, resolve_name
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    EllipsisType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    NoneType,
    NotImplementedType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from raysim.numbers.tensors.digests import arrays_digest, bytes_of
from raysim.numbers.tensors.torch_private import (
    is_compiled,
    is_script,
    script_text,
    transient_buffers,
)
from raysim.user_input.user_modules import INSTALLED, sources

PLAIN = (NoneType, bool, int, float, complex, str, bytes, EllipsisType, NotImplementedType)
SHORT = 64
"""Most characters of a plain value whose digest is cached: most modules have the same values."""
VERSIONED = ("raysim", "torch", "torchvision", "numpy")
"""Packages whose versions are recorded elsewhere."""
OF_MODULES = ("training", "_parameters", "_buffers", "_modules")
"""Attributes of a module that hold its mode, or that are read by name."""
OF_HOOKS = frozenset(name for name in vars(nn.Module()) if "_hooks" in name)
"""Attributes of a module that hold its hooks; most modules have none."""
CODE = (FunctionType, staticmethod, classmethod, property, cached_property)
"""Types of the members of a class that are code."""
NAMED = ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_FAST", "LOAD_NAME")
"""Names of instructions that look up a variable."""
ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
"""Names of instructions that look up an attribute."""
MUTATORS = frozenset(
    {
        *("append", "appendleft", "extend", "insert", "add", "update", "setdefault", "clear"),
        *("pop", "popitem", "popleft", "remove", "discard", "sort", "reverse"),
    }
)
"""Methods that change a container."""
LOGGING = ("append", "appendleft", "add")
"""Methods of a container that add one item."""


class NoDigestError(Exception):
    """Error of a value without a digest; the message names the value and its type."""


def digest_of(value: Any, name: str) -> str:
    """Return the digest of a value, with the code and the values that it reaches.

    Args:
        value: The value.
        name: The value's name in errors.

    Raises:
        NoDigestError: the value, or a value that it reaches, has no digest.
    """
    return _Digests().of(name, value)


def digest_of_modules(network: nn.Module, name: str) -> str:
    """Return the digest of a network's modules: types, attributes, and shared tensors.

    The values of parameters and persistent buffers do not count.

    Raises:
        NoDigestError: a module has no digest.
    """
    digests = _Digests()
    with digests.inside(name):
        return digests.modules(network)


class _Digests:
    """Digests of the values in one walk.

    `_found` maps the identity of each value to its digest, and keeps the value alive so that no
    other value gets its identity. While a value is walked, its entry holds its depth.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[str, Any]] = {}
        self._path: list[str] = []

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Name the part that the body walks, for errors."""
        self._path.append(name)
        try:
            yield
        finally:
            self._path.pop()

    def of(self, name: str, value: Any) -> str:
        """Return the digest of a value."""
        if type(value) in PLAIN:
            kind, text = type(value).__name__, repr(value)
            return _of_short(kind, text) if len(text) <= SHORT else _sha(kind, text)
        if id(value) in self._found:
            return self._found[id(value)][0]
        self._found[id(value)] = f"value at {len(self._path)}", value
        self._path.append(name)
        try:
            digest = self._digest(value)
        except NoDigestError:
            raise
        except Exception as error:  # a user's object may raise anything
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            raise NoDigestError(f"{self._where()} is a {kind}") from error
        finally:
            self._path.pop()
        self._found[id(value)] = digest, value
        return digest

    def _where(self) -> str:
        return ", ".join(filter(None, self._path))

    @singledispatchmethod
    def _digest(self, value: Any) -> str:
        return self._of_object(value)

    def _of_object(self, value: Any) -> str:
        """Return the digest of an object from the parts that `copy` would rebuild it from."""
        kind = type(value)
        if wrapped := getattr(value, "__dict__", {}).get("__wrapped__"):  # a functools cache
            return self._all("wrapper", [kind, wrapped])
        reduce = copyreg.dispatch_table.get(kind)
        parts = reduce(value) if reduce else value.__reduce_ex__(4)
        if isinstance(parts, str):  # the name of a global
            return _sha("global", _path_of(kind), parts)
        made, args, state, items, pairs = (*parts, None, None, None)[:5]
        lists = [made, args, state, [*(items or ())], dict(pairs or ())]
        return self._all("object", lists)

    @_digest.register(list)
    @_digest.register(tuple)
    @_digest.register(set)
    @_digest.register(frozenset)
    def _of_items(self, value: Any) -> str:
        digests = [self.of("", item) for item in value]
        kind = self.of("", type(value))
        return _sha(kind, *(digests if isinstance(value, list | tuple) else sorted(digests)))

    @_digest.register(dict)
    @_digest.register(MappingProxyType)
    def _of_mapping(self, value: Any) -> str:
        if type(value) not in (dict, OrderedDict, MappingProxyType):
            return self._of_object(value)
        pairs = [(self.of("", k), self.of(str(k), item)) for k, item in value.items()]
        return _sha("mapping", *(part for pair in sorted(pairs) for part in pair))

    @_digest.register(Tensor)
    @_digest.register(np.ndarray)
    def _of_array(self, value: Any) -> str:
        if isinstance(value, Tensor):
            whole = value.detach().cpu().resolve_conj().resolve_neg()
            return _sha("tensor", str(value.dtype), arrays_digest([bytes_of(whole)]))
        return self.of("", value.tolist()) if value.dtype.hasobject else arrays_digest([value])

    @_digest.register
    def _of_network(self, value: nn.Module) -> str:
        tensors = [*value.named_parameters(), *value.named_buffers()]
        return _sha(self.modules(value), self._named((n, t.data) for n, t in tensors))

    @_digest.register(MethodType)
    @_digest.register(BuiltinFunctionType)
    @_digest.register(MethodWrapperType)
    def _of_method(self, value: Any) -> str:
        function = getattr(value, "__func__", value.__name__)
        return self._all("method", [value.__self__, function])

    @_digest.register(MethodDescriptorType)
    @_digest.register(WrapperDescriptorType)
    @_digest.register(GetSetDescriptorType)
    @_digest.register(MemberDescriptorType)
    def _of_descriptor(self, value: Any) -> str:
        return _sha("descriptor", _path_of(value.__objclass__), value.__name__)

    @_digest.register(staticmethod)
    @_digest.register(classmethod)
    @_digest.register(property)
    @_digest.register(cached_property)
    def _of_member(self, value: Any) -> str:
        names = ("__func__", "fget", "fset", "fdel", "func")
        return self._all(type(value).__name__, [getattr(value, name, None) for name in names])

    @_digest.register
    def _of_handle(self, handle: RemovableHandle) -> str:
        return _sha("handle")  # its number depends on other hooks in the process

    @_digest.register(weakref.ref)
    def _of_reference(self, value: Any) -> str:
        return self._all("reference", [value()])

    def _all(self, kind: str, values: Iterable[Any]) -> str:
        return _sha(kind, *(self.of("", value) for value in values))

    def _named(self, values: Iterable[tuple[str, Any]]) -> str:
        return _sha(*(part for n, value in values for part in (n, self.of(n, value))))

    @_digest.register
    def _of_function(self, function: FunctionType) -> str:
        code, home = function.__code__, str(function.__globals__.get("__name__"))
        consts, is_own = code.co_consts, _is_own(home)
        if consts and isinstance(function.__doc__, str) and consts[0] == function.__doc__:
            consts = (None, *consts[1:])
        state = _state(code) if is_own else frozenset[str]()
        named = _globals_of(function, state) if is_own else {}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if name not in state:
                with suppress(ValueError):  # the variable is not assigned yet
                    named[f"variable {name}"] = cell.cell_contents
        attributes = {k: v for k, v in vars(function).items() if k != "__wrapped__"}
        return _sha(
            "" if is_own else _path_of(function),
            "" if _is_versioned(home) else self._of_code(code, consts),
            self._all("defaults", [function.__defaults__, function.__kwdefaults__]),
            self._named(sorted(attributes.items())),
            self._named(sorted(named.items())),
        )

    @_digest.register
    def _of_code(self, code: CodeType, consts: tuple[Any, ...] | None = None) -> str:
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        body = repr((code.co_code, code.co_exceptiontable, counts, names))
        return _sha("code", body, *(self.of("", const) for const in consts or code.co_consts))

    @_digest.register
    def _of_class(self, kind: type) -> str:
        if not _is_own(kind.__module__):
            functions = () if _is_versioned(kind.__module__) else _functions_of(kind)
            codes = [self._of_code(function.__code__) for function in functions]
            return _sha("class", _path_of(kind), *codes)
        state = _class_state(kind)
        members = {
            name: member
            for name, member in vars(kind).items()
            if isinstance(member, CODE) or not (name.startswith(("__", "_abc_")) or name in state)
        }
        bases = self._all("bases", kind.__bases__)
        return _sha("class", bases, self._named(sorted(members.items())))

    @_digest.register
    def _of_module(self, module: ModuleType) -> str:
        file = getattr(module, "__file__", None)
        if _is_own(module.__name__) and file:
            return _sha("module", hashlib.sha256(Path(file).read_bytes()).hexdigest())
        return _sha("module", _path_of(module))

    def modules(self, network: nn.Module) -> str:
        """Return what `digest_of_modules` does."""
        every = [*network.named_modules(remove_duplicate=False)]
        tensors = [
            (f"{path}.{name}", tensor, owner)
            for path, owner in every
            for tensors in (owner.named_parameters, owner.named_buffers)
            for name, tensor in tensors(recurse=False)
        ]
        names: dict[int, str] = {}
        for name, value, *_ in (*every, *tensors):
            names.setdefault(id(value), name)
            self._found.setdefault(id(value), (f"in a network: {name}", value))
        layout = [
            (name, names[id(tensor)], str(tensor.requires_grad)) for name, tensor, _ in tensors
        ]
        unseen = [
            (name, tensor.data)
            for name, tensor, owner in tensors
            if name.rpartition(".")[2] in transient_buffers(owner)
        ]
        changed_modules = [
            (path, names[id(module)] if names[id(module)] != path else self._own(path, module))
            for path, module in every
        ]
        return _sha("network", repr(layout), repr(changed_modules), self._named(unseen))

    def _own(self, path: str, module: nn.Module) -> str:
        """Return the digest of a module's type and attributes."""
        with self.inside(f"module {path}" if path else "the module"):
            if is_script(module):
                return _sha("script", script_text(module))
            if is_compiled(module):
                return _sha("compiled")
            attributes = {
                name: [*value.values()] if "_hooks" in name and isinstance(value, dict) else value
                for name, value in vars(module).items()
                if name not in OF_MODULES and (name not in OF_HOOKS or value)
            }
            kind = self.of(type(module).__qualname__, type(module))
            return _sha(kind, self._named(sorted(attributes.items())))


@lru_cache(maxsize=4096)
def _of_short(kind: str, text: str) -> str:
    return _sha(kind, text)


def _sha(*parts: str) -> str:
    """Return the digest of texts; their lengths count, so that no two lists are the same."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)} {part}".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _path_of(named: Any) -> str:
    """Return module, name and package version of a class, function or module."""
    home = str(getattr(named, "__module__", None) or getattr(named, "__name__", ""))
    name = getattr(named, "__qualname__", "")
    return f"{home}:{name} {'' if _is_versioned(home) else _version(home.partition('.')[0])}"


def _is_versioned(module: str) -> bool:
    """Return whether a module's version is recorded elsewhere, as Python's is."""
    top = module.partition(".")[0]
    return top in VERSIONED or top in sys.stdlib_module_names


def _is_own(module: str) -> bool:
    """Return whether a module is the user's: neither installed nor Python's."""
    if _is_versioned(module):
        return False
    file = getattr(sys.modules.get(module.partition(".")[0]), "__file__", None)
    # `__main__` may have the file of an installed command that runs a user's code.
    return module == "__main__" or file is None or not INSTALLED.intersection(Path(file).parts)


@cache
def _version(package: str) -> str:
    version = getattr(sys.modules.get(package), "__version__", None)
    if isinstance(version, str):
        return version
    try:
        return metadata.version(package)
    except (ImportError, ValueError):
        return ""


def _functions_of(class_: type) -> list[FunctionType]:
    members = (getattr(m, "__func__", m) for _, m in sorted(vars(class_).items(), key=_name))
    return [member for member in members if isinstance(member, FunctionType)]


def _name(item: tuple[str, Any]) -> str:
    return item[0]


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and the code objects in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _state(code: CodeType) -> frozenset[str]:
    """Return the outer variables that a function rebinds or fills."""
    names: set[str] = set()
    for code_object in _codes(code):
        steps = [*dis.get_instructions(code_object)]
        for step, after, next_one in zip(steps, steps[1:], steps[2:], strict=False):
            if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF"):
                names.add(step.argval)
            if step.opname not in ("LOAD_GLOBAL", "LOAD_DEREF"):
                continue
            calls = after.opname in ATTRIBUTE and after.argval in MUTATORS
            fills = next_one.opname in ("STORE_SUBSCR", "DELETE_SUBSCR", "COPY")
            if calls or (fills and after.opname.startswith("LOAD_")):
                names.add(step.argval)
    return frozenset(names)


def _class_state(kind: type) -> frozenset[str]:
    """Return the counters and logs of a class: attributes to which its own code adds.

    Examples are `Net.calls += 1`, `self.times[key] += 1` and `self.seen.append(x)`. An attribute
    that the code sets to another value, as a class method for configuration does, is not one.
    """
    added: set[str] = set()
    classes = [base for base in kind.__mro__ if _is_own(base.__module__)]
    names = {"cls", "self", *(class_.__name__ for class_ in classes)}
    for member in (member for class_ in classes for member in vars(class_).values()):
        parts = [getattr(member, part, None) for part in ("__func__", "fget", "fset", "func")]
        for function in (part for part in (member, *parts) if isinstance(part, FunctionType)):
            for code in _codes(function.__code__):
                added |= _added_to(code, names)
    return frozenset(added)


def _added_to(code: CodeType, names: set[str]) -> set[str]:
    """Return the attributes of a class, or of its objects, to which a code object adds."""
    steps, added = [*dis.get_instructions(code)], set[str]()
    sums = {
        after.argval
        for step, after in zip(steps, steps[2:], strict=False)
        if step.opname == "BINARY_OP" and step.argrepr == "+=" and after.opname == "STORE_ATTR"
    }
    for number, step in enumerate(steps[:-2]):
        if step.opname not in ATTRIBUTE or not number:
            continue
        base, after, next_one = steps[number - 1], steps[number + 1], steps[number + 2]
        if base.opname == "COPY" and step.argval in sums:
            if _is_class(steps[: number - 1], names - {"self"}):
                added.add(step.argval)
        elif _is_class(steps[:number], names):
            logs = after.opname in ATTRIBUTE and after.argval in LOGGING
            if logs or (next_one.opname == "COPY" and after.opname.startswith("LOAD_")):
                added.add(step.argval)
    return added


def _is_class(steps: list[dis.Instruction], names: set[str]) -> bool:
    """Return whether the last step loads one of the names, or an object's class."""
    last = steps[-1]
    if last.opname == "CALL":  # type(self)
        return any(step.argval == "type" for step in steps[-5:])
    return (last.opname in NAMED and last.argval in names) or (
        last.opname in ATTRIBUTE and last.argval == "__class__"
    )


def _globals_of(function: FunctionType, state: frozenset[str]) -> dict[str, Any]:
    """Return the values that a function names, of its module and of the user's other modules."""
    values: dict[str, Any] = {}
    for code in _codes(function.__code__):
        steps = [*dis.get_instructions(code)]
        for number, step in enumerate(steps):
            if step.opname == "IMPORT_NAME":
                level = steps[number - 2].argval
                package = function.__globals__.get("__package__")
                values[f"import {level} {step.argval}"] = _file_of(step.argval, level, package)
            elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval not in state:
                path, value = step.argval, function.__globals__.get(step.argval)
                for attribute in steps[number + 1 :]:
                    if attribute.opname not in ATTRIBUTE or not isinstance(value, ModuleType):
                        break
                    path, value = f"{path}.{attribute.argval}", getattr(value, attribute.argval)
                if not isinstance(value, ModuleType) or _is_own(value.__name__):
                    values[path] = value
    return values


def _file_of(module: str, level: int, package: str | None) -> bytes:
    """Return the source of a module of the user, and of those next to it that it imports.

    It need not be imported. The source of other modules is empty.
    """
    with suppress(ImportError, ValueError, TypeError, OSError):
        name = resolve_name("." * level + module, package) if level else module
        spec = find_spec(name) if _is_own(name) else None
        if spec and spec.origin and not INSTALLED.intersection(Path(spec.origin).parts):
            return b"".join(path.read_bytes() for _, path in sorted(sources(name).items()))
    return b""
