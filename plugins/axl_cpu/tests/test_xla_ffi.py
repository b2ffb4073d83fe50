"""Kernels refuse a jaxlib whose structs are laid out otherwise than their code expects."""

import ctypes

from axl_cpu.llvm.xla_ffi import (
    OFFSETS,
    api_version,
    field_offsets,
    find_problem,
    installed_header,
    interface_problem,
)

HEADER = installed_header()


def test_the_installed_jaxlib_is_as_expected():
    assert interface_problem() is None


def test_a_field_that_moved_is_named_with_both_versions():
    moved = HEADER.replace(
        "XLA_FFI_DataType dtype;", "XLA_FFI_DataType dtype;\n  int64_t flags;", 1
    )
    problem = find_problem(moved, "9.9")
    version = ".".join(map(str, api_version(HEADER)))
    assert problem is not None
    assert "version 0.3 of XLA's FFI, with XLA_FFI_Buffer.data at byte 24" in problem
    assert f"version {version} of jaxlib 9.9 has it at byte 32" in problem


def test_a_field_behind_an_unknown_type_is_refused():
    changed = HEADER.replace("XLA_FFI_DataType dtype;", "wchar dtype;", 1)
    assert "at an unknown byte" in (find_problem(changed, "9.9") or "")


def test_a_struct_that_is_gone_is_refused():
    assert find_problem(HEADER.replace("XLA_FFI_CallFrame {", "XLA_FFI_Frame {"), "9.9")


def test_offsets_are_those_of_the_c_language():
    class Buffer(ctypes.Structure):
        _fields_ = (
            ("struct_size", ctypes.c_size_t),
            ("extension_start", ctypes.c_void_p),
            ("dtype", ctypes.c_int),
            ("data", ctypes.c_void_p),
            ("rank", ctypes.c_int64),
            ("dims", ctypes.c_void_p),
        )

    found = field_offsets(HEADER)["XLA_FFI_Buffer"]
    assert found == {name: getattr(Buffer, name).offset for name, _ in Buffer._fields_}
    assert OFFSETS["XLA_FFI_Buffer"].items() <= found.items()
