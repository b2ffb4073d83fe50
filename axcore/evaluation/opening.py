"""`engine_model`: an opened model with an engine of its own."""

from collections.abc import Iterator
from contextlib import contextmanager

from axcore.evaluation.engine_model import EngineModel
from axcore.inference import Engine, EngineConfig
from axcore.ops import use_policy
from axcore.runs import OpenedModel


@contextmanager
def engine_model(opened: OpenedModel, *, max_num_seqs: int = 16) -> Iterator[EngineModel]:
    """Yields a model that answers questions, by the kernels that it trains with.

    Args:
        opened: What `open_model` returned.
        max_num_seqs: Answers that are drawn at once.
    """
    cfg = EngineConfig(max_num_seqs=max_num_seqs, max_length=opened.length, max_queue=1_000_000)
    with use_policy(opened.trainer.compiler.kernel_policy):
        engine = Engine(opened.model, opened.state, opened.tokenizer, cfg)
    with engine:
        yield EngineModel(engine)
