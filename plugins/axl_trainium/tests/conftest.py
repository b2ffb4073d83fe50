"""`runs_nki`: for tests whose kernels run, by AWS's SDK on a chip or by the simulator elsewhere."""

import pytest
from axl_trainium.calling import missing_sdk_reason


@pytest.fixture
def runs_nki():
    """Skip where kernels cannot run: the SDK without a chip, or a chip without it."""
    reason = missing_sdk_reason()
    if reason is not None:
        pytest.skip(reason)
