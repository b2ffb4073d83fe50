"""`CompilerOptions`: the record of a compiler options."""

from typing import ClassVar

import attrs

from axcore.hardware.predicates import Predicate, requires
from axcore.registration.record import Record, record
from axcore.registration.ref import Ref
from axcore.registration.validators import a_callable, a_name, of_type


@record(hook="compiler_options")
@attrs.frozen(kw_only=True)
class CompilerOptions(Record):
    """Options that programs are compiled with for some hardware, here or ahead of time.

    Two records that want different values of one option for a program are an error.

    Args:
        name: Shown where two records disagree.
        requires: From hardware to None, or why they are not meant for it.
        fn: From hardware to a mapping of option to a str, bool, int or float; imports no jax.
        serves: True for programs by which a model serves, False for train steps; None for both.
        summary: One line.

    Example:
        @hook.compiler_options
        def compiler_options():
            yield CompilerOptions(name="acme_overlap",
                                  requires=requires(family="acme"),
                                  fn=Ref("axl_acme.compiler:options"), summary="Overlap transfers")
    """

    kind: ClassVar[str] = "compiler options"

    name: str = attrs.field(validator=a_name)
    requires: Predicate = attrs.field(default=requires(), validator=a_callable)
    fn: Ref = attrs.field(validator=of_type(Ref))
    serves: bool | None = attrs.field(default=None, validator=of_type(bool, type(None)))
    summary: str = attrs.field(validator=of_type(str))
