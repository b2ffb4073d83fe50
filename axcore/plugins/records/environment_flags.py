"""`EnvironmentFlags`: the record of an environment flags."""

from typing import ClassVar

import attrs

from axcore.hardware.predicates import Predicate, requires
from axcore.registration.record import Record, record
from axcore.registration.ref import Ref
from axcore.registration.validators import a_callable, a_name, of_type


@record(hook="environment_flags")
@attrs.frozen(kw_only=True)
class EnvironmentFlags(Record):
    """Flags that some hardware wants in an environment variable before JAX starts.

    They are merged flag by flag. What the user has set wins; two plugins that want different values
    of one flag, and flags that come after JAX has started, are errors.

    Args:
        name: Shown where two records disagree.
        variable: The environment variable, which holds `--flag=value` texts with blanks between.
        requires: From hardware to None, or why the flags are not meant for it.
        fn: A function from hardware to a mapping of flag (`--xla_...`) to value; imports no jax.
        summary: One line.

    Example:
        @hook.environment_flags
        def environment_flags():
            yield EnvironmentFlags(name="acme_overlap", variable="XLA_FLAGS",
                                   requires=requires(family="acme"),
                                   fn=Ref("axl_acme.flags:overlap"), summary="Overlap transfers")
    """

    kind: ClassVar[str] = "environment flags"

    name: str = attrs.field(validator=a_name)
    variable: str = attrs.field(validator=a_name)
    requires: Predicate = attrs.field(default=requires(), validator=a_callable)
    fn: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))
