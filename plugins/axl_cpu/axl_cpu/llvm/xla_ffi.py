"""XLA's interface for foreign functions (FFI), as the header of the installed jaxlib declares it.

`host_call.ll` reads and writes XLA's structs by byte offsets. XLA keeps them within a version of
its interface only, and wrong ones would corrupt memory without an error. So they are computed from
the header, and compared, before a kernel is compiled.
"""

import functools
import re
from collections.abc import Mapping
from pathlib import Path

import jax
import jaxlib

WRITTEN_FOR = "0.3"
"""The version of the interface that `host_call.ll` and `Buffers` were written for."""

OFFSETS: Mapping[str, Mapping[str, int]] = {
    "XLA_FFI_Buffer": {"data": 24, "dims": 40},
    "XLA_FFI_CallFrame": {"extension_start": 8, "api": 16, "ctx": 24, "args.args": 72}
    | {"rets.rets": 112},
    "XLA_FFI_Metadata_Extension": {"metadata": 24},
    "XLA_FFI_Metadata": {"api_version.major_version": 24, "api_version.minor_version": 28},
    "XLA_FFI_Error_Destroy_Args": {"error": 16},
    "XLA_FFI_Error_Create_Args": {"message": 16, "errc": 24},
    "XLA_FFI_ThreadPool_NumThreads_Args": {"ctx": 16, "num_threads": 24},
    "XLA_FFI_ThreadPool_Schedule_Args": {"ctx": 16, "task": 24, "data": 32},
    "XLA_FFI_Api": {"XLA_FFI_Error_Create": 48},
}
"""The bytes at which fields begin, in `host_call.ll` and `Buffers`."""

_SIZES = {"size_t": 8, "int64_t": 8, "int": 4, "int32_t": 4}
_STRUCT = re.compile(r"^(?:typedef )?struct (XLA_FFI_\w+) \{(.*?)^\}", re.DOTALL | re.MULTILINE)
_FUNCTION = re.compile(r"_XLA_FFI_API_STRUCT_FIELD\((\w+)\)")
_FIELD = re.compile(r"(?:const |struct )*(\w+)\s*(\**)\s*(\w+)")


@functools.cache
def interface_problem() -> str | None:
    """Return why kernels cannot be called by the installed jaxlib, or None."""
    return find_problem(installed_header(), jaxlib.__version__)


def installed_header() -> str:
    """Return the header of the installed jaxlib."""
    path = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    return path.read_text(encoding="utf-8")


def find_problem(header: str, jaxlib_version: str) -> str | None:
    """Return the first field that a header declares elsewhere than kernels expect it, or None."""
    declared = field_offsets(header)
    for struct, fields in OFFSETS.items():
        for field, offset in fields.items():
            found = declared.get(struct, {}).get(field)
            if found != offset:
                there = "at an unknown byte" if found is None else f"at byte {found}"
                version = ".".join(map(str, api_version(header)))
                return (
                    f"was written for version {WRITTEN_FOR} of XLA's FFI, with {struct}.{field} at "
                    f"byte {offset}; version {version} of jaxlib {jaxlib_version} has it {there}"
                )
    return None


def api_version(header: str) -> tuple[int, int]:
    """Return the version of the interface that a header declares: major and minor."""
    numbers = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header))
    return int(numbers["MAJOR"]), int(numbers["MINOR"])


def field_offsets(header: str) -> dict[str, dict[str, int]]:
    """Return where each field of each struct of a header begins, in bytes, on 64-bit processors.

    Fields of a struct within a struct are named `outer.inner`. What follows a field of a type that
    is not known here is left out.
    """
    header = re.sub(r"//[^\n]*|/\*.*?\*/", "", header, flags=re.DOTALL)
    structs = {name: _fields(body) for name, body in _STRUCT.findall(header)}
    enums = set(re.findall(r"\} (XLA_FFI_\w+);", header)) - structs.keys()
    offsets: dict[str, dict[str, int]] = {}

    @functools.cache
    def layout(struct: str) -> tuple[int, int] | None:
        """Return size and alignment, and keep the fields' offsets."""
        end, widest = 0, 1
        places = offsets[struct] = {}
        for kind, is_pointer, name in structs[struct]:
            own = (
                (8, 8) if is_pointer else layout(kind) if kind in structs else _scalar(kind, enums)
            )
            if own is None:
                return None
            size, alignment = own
            end += -end % alignment
            places[name] = end
            if not is_pointer and kind in structs:
                places |= {f"{name}.{inner}": end + at for inner, at in offsets[kind].items()}
            end, widest = end + size, max(widest, alignment)
        return end + -end % widest, widest

    for struct in OFFSETS:
        if struct in structs:
            layout(struct)
    return offsets


def _scalar(kind: str, enums: set[str]) -> tuple[int, int] | None:
    size = 4 if kind in enums else _SIZES.get(kind)
    return None if size is None else (size, size)


def _fields(body: str) -> list[tuple[str, bool, str]]:
    """Return type, whether it is a pointer, and name of each field of a struct's body."""
    body = _FUNCTION.sub(r"void* \1", body)
    found = (_FIELD.fullmatch(line.strip()) for line in body.split(";") if line.strip())
    return [(one[1], bool(one[2]), one[3]) for one in found if one]
