"""Each family's model once, in both libraries."""

import pytest
from parity_pairs import MODELS, Pair, make_pair


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(request.param, tmp_path_factory.mktemp("parity") / request.param)
