"""A message's weight is what each of its tokens weighs: in the loss, in packing, in a store."""

import json
from itertools import islice

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chat_tokenizer import MARKED, TEMPLATE, write_chat_tokenizer
from numpy_state import numpy_state
from stores import built

from axcore.config import evolve, update_config
from axcore.data import (
    ByteTokenizer,
    ChatFiles,
    ChatMessages,
    ChatPairs,
    Data,
    StoredSource,
    tokenizer_in,
)
from axcore.errors import DataError
from axcore.models import llama2
from axcore.module import functional

TALKS = (
    (("a?", "one", 0.3), ("b?", "two or three", 2), ("c?", "none", 0)),
    (("d?", "a long answer to a short question", None),),
    (("e?", "x", 0.7), ("f?", "yz", 0.7)),
)


def written(path, talks=TALKS):
    """Writes conversations of questions, answers and weights."""
    lines = []
    for talk in talks:
        messages = []
        for question, answer, weight in talk:
            messages.append({"role": "user", "content": question})
            own = {} if weight is None else {"weight": weight}
            messages.append({"role": "assistant", "content": answer, **own})
        lines.append(json.dumps({"messages": messages}) + "\n")
    path.write_text("".join(lines))
    return str(path)


def data_of(tmp_path, talks=TALKS, **settings):
    source = ChatFiles.Config(path=written(tmp_path / "chats.jsonl", talks))
    sizes = {"seq_len": 160, "batch_size": 2, "validation_fraction": 0.0, "packing": "best_fit"}
    return Data.Config(source=source, **{**sizes, **settings})


def by_hand():
    """Returns of each conversation its bytes, and what each weighs."""
    found = []
    for talk in TALKS:
        tokens, weights = [256], [0.0]
        for question, answer, weight in talk:
            before = f"<user>\n{question}\n<assistant>\n".encode()
            counted = [*answer.encode(), 257]
            tokens += [*before, *counted, ord("\n")]
            weight = 1.0 if weight is None else weight
            weights += [0.0] * len(before) + [weight] * len(counted) + [0.0]
        found.append((tokens, weights))
    return found


def mean_loss(model, state, talks):
    """Returns the weighted mean of cross-entropies of conversations, each read alone."""
    longest = max(len(tokens) for tokens, _ in talks)
    rows = jnp.array([tokens + [258] * (longest - len(tokens)) for tokens, _ in talks])
    read = jax.jit(lambda rows: functional(model, state, rows, method="logits")[0])
    every = np.asarray(jax.nn.log_softmax(read(rows)), np.float64)
    total = weight = 0.0
    for log_probs, (tokens, weights) in zip(every, talks, strict=True):
        for place, (token, own) in enumerate(zip(tokens[1:], weights[1:], strict=True)):
            total -= own * log_probs[place, token]
            weight += own
    return total / weight


def test_the_loss_of_packed_conversations_is_the_weighted_mean_of_each_alone(tmp_path):
    data = data_of(tmp_path).build()
    batch = next(data.train())
    assert batch["segment_ids"].max() > 1, "conversations share a row"
    model = update_config(llama2("toy"), {"**.num_layers": 1, "vocab_size": 264}).build()
    state = jax.tree.map(jnp.asarray, numpy_state(model.param_specs()))
    loss = jax.jit(lambda batch: functional(model, state, batch)[1].total_loss())(batch)
    assert float(loss) == pytest.approx(mean_loss(model, state, by_hand()), 1e-5)


@pytest.mark.parametrize("template", [TEMPLATE, MARKED])
def test_each_answer_has_its_weight_whichever_way_it_is_found(tmp_path, template):
    tokenizer = tokenizer_in(write_chat_tokenizer(tmp_path / "model", template)).build()
    source = ChatFiles.Config(path=written(tmp_path / "chats.jsonl")).build()
    first, second, third = source.transformed(tokenizer)
    for weight, answer in ((0.3, "one"), (2, "two or three")):
        assert tokenizer.decode(first.tokens[first.loss_weights == np.float32(weight)]) == answer
    assert set(second.loss_weights) == {0.0, 1.0}
    assert tokenizer.decode(third.tokens[third.loss_weights == np.float32(0.7)]) == "xyz"


def test_every_packing_keeps_every_weight(tmp_path):
    wanted = sorted(w for _, weights in by_hand() for w in np.float32(weights[1:]) if w)
    for packing in ("concatenate", "best_fit", "one_document"):
        data = data_of(tmp_path, packing=packing, seq_len=24, batch_size=1).build()
        rows = int(data.summary().batches_per_epoch)
        found = np.concatenate([one["loss_weights"] for one in islice(data.train(), rows)])
        assert sorted(found[found != 0]) == wanted


def test_a_store_keeps_weights_where_it_has_room_for_them(tmp_path):
    cfg = data_of(tmp_path)
    with pytest.raises(DataError, match=r"chats.jsonl:1: .* other than 0 and 1 .* token of 16 b"):
        built(cfg, tmp_path / "narrow")
    roomy = evolve(cfg, source=evolve(cfg.source, reads=ChatMessages.Config(stores_weights=True)))
    stored = built(roomy, tmp_path / "store")
    assert stored.manifest.dtype == "<u8"
    from_store = evolve(cfg, source=StoredSource.Config(path=str(stored.folder)))
    pairs = zip(cfg.build().train(), from_store.build().train(), strict=False)
    for ours, theirs in islice(pairs, 3):
        for name in ours:
            np.testing.assert_array_equal(ours[name], theirs[name])


def test_weights_of_0_and_1_take_no_room(tmp_path):
    cfg = data_of(tmp_path, ((("a?", "b", 0), ("c?", "d", 1)),) * 4)
    assert built(cfg, tmp_path / "store").manifest.dtype == "<i2"


@pytest.mark.parametrize("weight", [-1, "0.5", float("nan"), 1e7, 1e-9])
def test_a_weight_that_is_none_is_refused(tmp_path, weight):
    cfg = data_of(tmp_path, ((("a?", "b", weight),),))
    with pytest.raises(
        DataError, match=r"chats.jsonl:1: Message 2 has the weight .*expected 0, or"
    ):
        next(cfg.build().train())


def test_weights_where_all_tokens_count_alike_are_refused(tmp_path):
    cfg = data_of(tmp_path)
    cfg = evolve(cfg, source=evolve(cfg.source, reads=ChatMessages.Config(role=None)))
    with pytest.raises(DataError, match=r"Message 2 has the weight 0.3, and role=None counts"):
        next(cfg.build().train())


def test_labelled_answers_have_no_weights(tmp_path):
    path = tmp_path / "pairs.jsonl"
    chosen = [{"role": "assistant", "content": "b", "weight": 0.5}]
    path.write_text(json.dumps({"prompt": "a", "chosen": chosen, "rejected": "c"}) + "\n")
    source = ChatFiles.Config(path=str(path), reads=ChatPairs.Config()).build()
    with pytest.raises(DataError, match=r"weights \[1.0, 0.5\]; labelled answers have 0 or 1"):
        list(source.transformed(ByteTokenizer.Config().build()))
