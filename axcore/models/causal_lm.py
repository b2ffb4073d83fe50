"""`CausalLM`: a decoder and a head, trained to predict the next token; and `transformer`.

A head leads from hidden vectors to logits, or straight to the loss. `transformer` returns the
config that every family starts from. Families edit its result with `replace_config` and `evolve`;
it gets no argument for a feature.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, PositiveInt, config, suggest_names
from axcore.errors import ConfigError, ModuleError
from axcore.interop.family import CheckpointInfo
from axcore.layers import (
    Attention,
    Dropout,
    Embedding,
    FeedForward,
    RMSNorm,
    RoPE,
    ScannedLayers,
    TransformerLayer,
)
from axcore.layers.linear import matmul_transposed, over_rows
from axcore.layers.tokens import TOKEN_MASK, TokenInfo, packed_rows, whole_rows
from axcore.module import (
    NATS_A_TOKEN,
    ArraySpec,
    BatchSpec,
    Initializer,
    ModelFlops,
    Module,
    Param,
    StackedModule,
    VarianceScaling,
    count_params,
    entry,
)
from axcore.ops import cross_entropy_sums
from axcore.parallel import shard

LOGITS_AT_ONCE = 512
"""Places of a row whose logits are in memory together where only log-probabilities are wanted."""

Hidden = Float[Array, "batch time dim"]
Table = Float[Array, "vocab dim"]


class Head(Module):
    """What every head does with its projection. Slot protocol: the parent fills the first two.

    A subclass says what the projection is: `projection(table)`, `[vocab, dim]`.
    """

    @config
    class Config(Module.Config["Head"]):
        """Describes a head.

        Args:
            dim: Size of a hidden vector.
            vocab_size: Number of logits.
            soft_cap: Caps logits smoothly at this value.
            z_loss: Weight of the squared log-partition, a regularizer that keeps logits small.
        """

        dim: PositiveInt = REQUIRED
        vocab_size: PositiveInt = REQUIRED
        soft_cap: float | None = None
        z_loss: float = 0.0

    def projection(self, table: Table) -> Table:
        """Return the vector of each token that hidden vectors are compared with."""
        raise NotImplementedError

    def factors(self, x: Hidden, table: Table) -> tuple[Hidden, Table]:
        """Return the two arrays whose products are the logits, for the loss."""
        return x, self.projection(table)

    def forward(self, x: Hidden, table: Table) -> Float[Array, "batch time vocab"]:
        """Return float32 logits; `table` is the embedding table."""
        return self._logits(x, table)

    @entry
    def log_probs(
        self, x: Hidden, table: Table, targets: Int[Array, "batch time"]
    ) -> Float[Array, "batch time"]:
        """Return the float32 log-probability of each target.

        Logits are there for `LOGITS_AT_ONCE` places of each row at a time, and are computed again
        in the backward pass.
        """
        (found,) = self._in_pieces(
            lambda logits, targets: (_log_prob(logits, targets),), x, table, targets
        )
        return found

    @entry
    def log_probs_and_entropies(
        self,
        x: Hidden,
        table: Table,
        targets: Int[Array, "batch time"],
        temperature: float = 1.0,
    ) -> tuple[Float[Array, "batch time"], Float[Array, "batch time"]]:
        """Return the float32 log-probability of each target, and the entropy at its place.

        Both are in nats, of the softmax of logits that are divided by the temperature. Memory is as
        for `log_probs`.
        """

        def of_some(logits: Array, targets: Array) -> tuple[Array, Array]:
            scaled = logits if temperature == 1 else logits / temperature
            log_probs = jax.nn.log_softmax(scaled, axis=-1)
            # 0 times minus infinity is nan, and a masked token has that log-probability.
            terms = jnp.where(log_probs > -jnp.inf, jnp.exp(log_probs) * log_probs, 0)
            return _log_prob(scaled, targets), -jnp.sum(terms, axis=-1)

        log_probs, entropies = self._in_pieces(of_some, x, table, targets)
        return log_probs, entropies

    def _in_pieces(
        self,
        of_some: Callable[[Array, Array], tuple[Array, ...]],
        x: Hidden,
        table: Table,
        targets: Int[Array, "batch time"],
    ) -> tuple[Array, ...]:
        """Return arrays `[batch, time]` of logits and targets, from pieces of the rows."""

        @jax.checkpoint
        def of_piece(x: Hidden, targets: Int[Array, "batch time"]) -> tuple[Array, ...]:
            return of_some(self._logits(x, table), targets)

        size = LOGITS_AT_ONCE
        found = [
            of_piece(x[:, begin : begin + size], targets[:, begin : begin + size])
            for begin in range(0, x.shape[1], size)
        ]
        return tuple(jnp.concatenate(pieces, axis=1) for pieces in zip(*found, strict=True))

    def products(
        self, rows: Float[Array, "*rows dim"], table: Table
    ) -> Float[Array, "*rows vocab"]:
        """Return the products of hidden vectors with the projection: logits without a cap."""
        return matmul_transposed(rows, self.projection(table))

    def _logits(self, x: Hidden, table: Table) -> Float[Array, "batch time vocab"]:
        logits = over_rows(lambda rows: self.products(rows, table), x).astype(jnp.float32)
        cap = self.config.soft_cap
        return logits if cap is None else cap * jnp.tanh(logits / cap)

    @entry
    def loss(
        self,
        x: Hidden,
        table: Table,
        targets: Int[Array, "batch time"],
        weights: Float[Array, "batch time"],
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Return the weighted sum of cross-entropies in nats, and the sum of weights.

        Adds the z-loss as a loss of its own.
        """
        total, weight, _ = self._loss_and_correct(x, table, targets, weights)
        return total, weight

    @entry
    def loss_and_correct(
        self,
        x: Hidden,
        table: Table,
        targets: Int[Array, "batch time"],
        weights: Float[Array, "batch time"],
    ) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
        """Return what `loss` does, and the weight of targets that have the largest logit."""
        return self._loss_and_correct(x, table, targets, weights)

    def _loss_and_correct(
        self,
        x: Hidden,
        table: Table,
        targets: Int[Array, "batch time"],
        weights: Float[Array, "batch time"],
    ) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
        cfg = self.config
        sums = cross_entropy_sums(
            *self.factors(x, table),
            targets,
            weights,
            vocabulary_first=True,
            z_loss=cfg.z_loss,
            soft_cap=cfg.soft_cap,
        )
        if not cfg.z_loss:
            return sums.loss, sums.weight, sums.correct
        # The kernels know one loss: its gradient comes with the sum that is returned, and what is
        # added has none.
        z_loss = jax.lax.stop_gradient(sums.z_loss)
        self.add_regularizer("z", z_loss / cfg.z_loss, sums.weight, scale=cfg.z_loss)
        return sums.loss - z_loss, sums.weight, sums.correct


def _log_prob(
    logits: Float[Array, "batch time vocab"], targets: Int[Array, "batch time"]
) -> Float[Array, "batch time"]:
    # Not a gather: of logits that are sharded by vocabulary, it would need all of them.
    is_target = jax.nn.one_hot(targets, logits.shape[-1], dtype=bool)
    chosen = jnp.sum(jnp.where(is_target, logits, 0), axis=-1)
    return chosen - jax.nn.logsumexp(logits, axis=-1)


class TiedHead(Head):
    """Projects by the embedding table."""

    def setup(self, cfg: Head.Config) -> None:
        """Declare that tokens are multiplied by the table, which is another module's."""
        self.inactive_params = -cfg.vocab_size * cfg.dim

    def projection(self, table: Table) -> Table:
        """Return the embedding table."""
        return table


class UntiedHead(Head):
    """Projects by a matrix of its own."""

    @config
    class Config(Head.Config):
        """Describes an `UntiedHead`.

        Args:
            weight_init: First value of the projection.
        """

        weight_init: Initializer = VarianceScaling()

    def setup(self, cfg: Config) -> None:
        """Declare the projection."""
        self.weight = Param(
            (cfg.vocab_size, cfg.dim),
            axes=("vocab", "embed"),
            inputs=("embed",),
            init=cfg.weight_init,
        )

    def projection(self, table: Table) -> Table:
        """Return the head's own matrix."""
        return self.weight


class QuantizedHead(Head):
    """An `UntiedHead` with its projection in int8, for serving only; each token has a scale.

    A number is off by at most 1/254 of the largest of its token.
    """

    def setup(self, cfg: Head.Config) -> None:
        """Declare the numbers and the scales."""
        axes = ("vocab", "embed")
        self.row_values = Param(
            (cfg.vocab_size, cfg.dim),
            axes=axes,
            inputs=("embed",),
            dtype="int8",
            init=0.0,
            cast=False,
        )
        self.row_scale = Param(
            (cfg.vocab_size, 1), axes=("vocab", None), init=1.0, dtype="float32", cast=False
        )

    def projection(self, table: Table) -> Table:
        """Return the matrix in full precision."""
        wide: Table = self.row_values.astype(jnp.float32) * self.row_scale
        return wide

    def products(
        self, rows: Float[Array, "*rows dim"], table: Table
    ) -> Float[Array, "*rows vocab"]:
        """Return the products with int8 numbers, times their scales."""
        return matmul_transposed(rows, self.row_values, self.row_scale)


FORMULA = "6 N + 6 T d per attention layer"
"""N trainable parameters that a token is multiplied by: all but embedding tables that are only
looked up, and the experts that it does not go to; T tokens a row; d width of all heads together,
the mean of keys' and values' where they differ.

A multiplication and an addition are two operations, and the backward pass costs twice the forward.
Causal attention is counted as half of all pairs, whatever a kernel does, and whatever a window
hides.

Source: Kaplan et al. 2020, arXiv:2001.08361, section 2.1, with attention as in Chowdhery et al.
2022, arXiv:2204.02311, appendix B, halved for causality.
"""


def flops_per_token(model: Module, seq_len: int) -> float:
    """Return the model FLOPs of one token, forward and backward, by `FORMULA`.

    Modules say what differs from one product per parameter: `attention_width`, the width of their
    heads, and `inactive_params`, how many of the parameters in them an average token is not
    multiplied by (below zero where it is multiplied by another module's).
    """
    modules = list(_walk(model, 1))
    idle: float = sum(times * getattr(module, "inactive_params", 0) for module, times in modules)
    width: float = sum(times * getattr(module, "attention_width", 0) for module, times in modules)
    return 6.0 * (count_params(model.param_specs()) - idle) + 6.0 * seq_len * width


def _walk(module: Module, times: int) -> Any:
    yield module, times
    for _, child in module.children():
        if isinstance(child, StackedModule):
            yield from _walk(child.module, times * child.count)
        else:
            yield from _walk(child, times)


class Decoder(Module):
    """Embeds tokens, passes them through a stack of layers, and normalises the result.

    Slot protocol: the parent fills `vocab_size` and `dim`.
    """

    @config
    class Config(Module.Config["Decoder"]):
        """Describes a `Decoder`.

        Args:
            vocab_size: Number of tokens.
            dim: Size of a token's vector.
            embedding: The token table.
            stack: The layers, scanned (`ScannedLayers`) or unrolled (`Stack`).
            norm: The norm after the last layer.
            dropout: Applied to the embeddings.
        """

        vocab_size: PositiveInt = REQUIRED
        dim: PositiveInt = REQUIRED
        embedding: Module.Config = Embedding.Config()
        stack: Module.Config = ScannedLayers.Config(layer=TransformerLayer.Config())
        norm: Module.Config = RMSNorm.Config()
        dropout: Dropout.Config = Dropout.Config()

    def setup(self, cfg: Config) -> None:
        """Build the parts."""
        self.embedding = cfg.embedding.build(vocab_size=cfg.vocab_size, dim=cfg.dim)
        self.dropout = cfg.dropout.build()
        self.stack = cfg.stack.build(dim=cfg.dim)
        self.norm = cfg.norm.build(dim=cfg.dim)

    def forward(
        self, tokens: Int[Array, "batch time"], info: TokenInfo
    ) -> Float[Array, "batch time dim"]:
        """Return a normalised vector for each token."""
        if info.is_real is not None:
            self.set_shared(TOKEN_MASK, info.is_real)
        x = shard(self.dropout(self.embedding(tokens, info)), "batch", "time", "embed")
        return self.norm(self.stack(x, info))


def check_vocab_size(vocab_size: int, tokens: ArraySpec) -> None:
    """Check that a model has a logit for each token of a batch.

    Raises:
        ConfigError: The tokenizer has more.
    """
    if tokens.num_values is not None and vocab_size < tokens.num_values:
        raise ConfigError(
            f"vocab_size is {vocab_size}, but the tokenizer has {tokens.num_values} tokens",
            where="model.vocab_size",
            hint=f"--set model.vocab_size={tokens.num_values}",
        )


BATCH = ("tokens", "targets", "positions", "loss_weights")
"""The arrays of a batch that a `CausalLM` is called with."""

_OPTIONAL = ("segment_ids", TOKEN_MASK)
"""Arrays that say which tokens are padding, and keep documents apart."""


class CausalLM(Module):
    """A causal language model. As the root of a tree it takes its sizes from its own config."""

    @config
    class Config(Module.Config["CausalLM"]):
        """Describes a `CausalLM`.

        Args:
            vocab_size: Number of tokens; at least the tokenizer's.
            dim: Size of a token's vector.
            decoder: From tokens to hidden vectors.
            head: From hidden vectors to logits and the loss.
            published: The pretrained checkpoint that this model was read from, which decides what
                exports say about more than the numbers.
        """

        vocab_size: PositiveInt = REQUIRED
        dim: PositiveInt = REQUIRED
        decoder: Module.Config = Decoder.Config()
        head: Module.Config = UntiedHead.Config()
        published: CheckpointInfo | None = None

    def setup(self, cfg: Config) -> None:
        """Build decoder and head."""
        # Not only called: checkers take each for whatever its slot holds, as a slot has no type.
        self.decoder: Any = cfg.decoder.build(vocab_size=cfg.vocab_size, dim=cfg.dim)
        self.head: Any = cfg.head.build(dim=cfg.dim, vocab_size=cfg.vocab_size)

    def forward(self, batch: Mapping[str, Array]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Add the cross-entropy of a batch as a loss, and return its sum and weight.

        Args:
            batch: `tokens`, `targets`, `positions` (`[batch, time]` ints) and `loss_weights`
                (`[batch, time]` floats), as `axcore.data` makes them; and `segment_ids` (ints)
                where a row holds several documents, from one of which attention reaches no other,
                or `token_mask` (bools) where it is read as one and may end in padding.
        """
        total, weight, _ = self.next_token_loss(batch)
        return total, weight

    def next_token_loss(
        self, batch: Mapping[str, Array]
    ) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, "batch time dim"]]:
        """Add the cross-entropy of a batch; return its sum and weight, and the hidden vectors."""
        _check_batch(batch)
        x = self.decoder(batch["tokens"], packed_rows(batch))
        table = self.decoder.embedding.weight
        total, weight = self.head.loss(x, table, batch["targets"], batch["loss_weights"])
        self.add_loss("cross_entropy", total, weight)
        return total, weight, x

    def check_batch(self, batch: BatchSpec) -> None:
        """Check that a batch is of tokens, and that there is room for each of them.

        Raises:
            ConfigError: It is not, or there is not, or it has arrays that would be passed over.
        """
        missing = [name for name in BATCH if name not in batch.arrays]
        if missing:
            raise ConfigError(
                f"CausalLM is trained on {', '.join(BATCH)}, but a batch has no "
                f"{', '.join(missing)}; it has {', '.join(batch.arrays)}",
                where="data",
                hint="train it on axcore.data.Data, or on what yields the same arrays",
            )
        if unread := [name for name in batch.arrays if name not in (*BATCH, *_OPTIONAL)]:
            raise ConfigError(
                f"a batch has {', '.join(unread)}, which CausalLM does not read",
                where="data",
                hint="segment_ids keep the documents of a row apart, and token_mask says what is "
                "not padding; leave other arrays out",
            )
        check_vocab_size(self.config.vocab_size, batch.arrays["tokens"])

    def metric_units(self) -> Mapping[str, str]:
        """Return nats a token, for the cross-entropy."""
        return dict.fromkeys(("loss", "loss/cross_entropy"), NATS_A_TOKEN)

    def flops_per_unit(self, batch: BatchSpec) -> ModelFlops:
        """Return the model FLOPs of a token."""
        return ModelFlops(flops_per_token(self, batch.axis_sizes()["time"]), FORMULA)

    @entry
    def logits(
        self,
        tokens: Int[Array, "batch time"],
        info: TokenInfo | None = None,
        at: Int[Array, "batch places"] | None = None,
    ) -> Float[Array, "batch places vocab"]:
        """Return float32 logits of the token after each, or after those `at` some places only.

        Args:
            tokens: Of the rows.
            info: Of the tokens; may be left out outside of training, where rows are whole.
            at: Places of each row.

        Raises:
            ModuleError: There is no info in training.
        """
        if info is None:
            self._check_is_not_trained()
            info = whole_rows(tokens)
        x = self.decoder(tokens, info)
        if at is not None:
            x = jnp.take_along_axis(x, at[:, :, None], axis=1)
        return self.head(x, self.decoder.embedding.weight)

    @entry
    def hidden(
        self, tokens: Int[Array, "batch time"], info: TokenInfo
    ) -> Float[Array, "batch time dim"]:
        """Return the hidden vector of each token, of which `logits_of` makes its logits."""
        hidden: Float[Array, "batch time dim"] = self.decoder(tokens, info)
        return hidden

    @entry
    def logits_of(
        self, hidden: Float[Array, "batch places dim"]
    ) -> Float[Array, "batch places vocab"]:
        """Return float32 logits: of some places at a time, where all would take much memory."""
        logits: Float[Array, "batch places vocab"] = self.head(
            hidden, self.decoder.embedding.weight
        )
        return logits

    @entry
    def log_probs(
        self,
        tokens: Int[Array, "batch time"],
        targets: Int[Array, "batch time"],
        info: TokenInfo,
    ) -> Float[Array, "batch time"]:
        """Return the float32 log-probability of each target after the tokens up to its place."""
        x = self.decoder(tokens, info)
        return self.head.log_probs(x, self.decoder.embedding.weight, targets)

    @entry
    def log_probs_and_entropies(
        self,
        tokens: Int[Array, "batch time"],
        targets: Int[Array, "batch time"],
        info: TokenInfo,
        temperature: float = 1.0,
    ) -> tuple[Float[Array, "batch time"], Float[Array, "batch time"]]:
        """Return the float32 log-probability of each target, and the entropy at its place.

        Args:
            tokens: Of the rows.
            targets: The token after each.
            info: Of the tokens.
            temperature: What logits are divided by.
        """
        return self.log_probs_and_entropies_of(self.decoder(tokens, info), targets, temperature)

    @entry
    def log_probs_and_entropies_of(
        self,
        hidden: Float[Array, "batch time dim"],
        targets: Int[Array, "batch time"],
        temperature: float = 1.0,
    ) -> tuple[Float[Array, "batch time"], Float[Array, "batch time"]]:
        """Return what `log_probs_and_entropies` does, of hidden vectors that something else reads.

        Args:
            hidden: What `hidden` returned.
            targets: The token after each.
            temperature: What logits are divided by.
        """
        found: tuple[Array, Array] = self.head.log_probs_and_entropies(
            hidden, self.decoder.embedding.weight, targets, temperature=temperature
        )
        return found

    def _check_is_not_trained(self) -> None:
        """Check that nothing counts tokens of which nobody said whether they are padding.

        Raises:
            ModuleError: The model is being trained: routers and statistics count them.
        """
        if self.training:
            raise ModuleError(
                "logits are asked for in training without a TokenInfo, which says what is padding",
                hint="pass packed_rows(batch) or whole_rows(tokens, token_mask), of axcore.layers",
            )


def _check_batch(batch: Any) -> None:
    """Check that a model is called with a batch.

    Raises:
        ModuleError: It is something else, or lacks arrays.
    """
    names = batch if isinstance(batch, Mapping) else ()
    missing = [name for name in BATCH if name not in names]
    if missing:
        got = f"without {', '.join(missing)}" if names else f"with {_kind(batch)}"
        raise ModuleError(
            f"the model is called {got}; expected a mapping of {', '.join(BATCH)}",
            hint='for logits of tokens: functional(model, state, tokens, method="logits")',
        )


def _kind(value: Any) -> str:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return type(value).__qualname__ if shape is None else f"an array of {dtype}{list(shape)}"


Sizes = Mapping[str, Mapping[str, Any]]
"""Arguments of `transformer` by the name of a size. Every family has a size `toy`, for tests."""

TOY: Mapping[str, Any] = {
    "vocab_size": 264,
    "dim": 64,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "hidden_dim": 96,
}


def of_size(family: str, sizes: Sizes, size: str) -> Mapping[str, Any]:
    """Return the arguments of a size.

    Raises:
        ConfigError: The family has no such size.
    """
    if size not in sizes:
        raise ConfigError(
            f"{family} has no size {size!r}; {suggest_names(size, sizes)}", where=f"{family}(size)"
        )
    return sizes[size]


def transformer(
    *,
    vocab_size: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int | None = None,
    hidden_dim: int,
) -> CausalLM.Config:
    """Return the config of a pre-norm transformer with RoPE and gated feed-forwards.

    Source: Touvron et al. 2023, arXiv:2302.13971, section 2.2.
    """
    layer = TransformerLayer.Config(
        attention=Attention.Config(
            num_heads=num_heads, num_kv_heads=num_kv_heads, position=RoPE.Config()
        ),
        feed_forward=FeedForward.Config(hidden_dim=hidden_dim),
    )
    return CausalLM.Config(
        vocab_size=vocab_size,
        dim=dim,
        decoder=Decoder.Config(stack=ScannedLayers.Config(num_layers=num_layers, layer=layer)),
    )
