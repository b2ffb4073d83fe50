"""Attention of the newest tokens over a cache, as a program of the host.

Letters: B batch rows, T queries of a row, N query heads, K key heads, G query heads of a key head,
H key width, V value width; M pages of the cache, C keys of a page, P pages of a row; L lanes of a
vector.

A part is some heads of a row. It goes over the row's keys and values once, L at a time, which are
the lanes of a vector of logits, and of these as they are stored in memory: all heads of a token
    together.
The online softmax of each query is in memory that stays in a core's first cache.
What is beyond a row's keys is not read: lanes without a key read the nearest one, and count for
nothing. A row's result is the same to the bit whatever the others are.
"""

from collections.abc import Callable

import attrs
from llvmlite import ir

from axl_cpu.llvm.emitter import Emitter, Value
from axl_cpu.llvm.host_call import Buffers
from axl_cpu.llvm.numbers import exp, tanh, widened

PARTS_PER_THREAD = 4
_NOTHING = -1e30
"""Minus infinity, but a number, so that differences are, too."""


@attrs.frozen(kw_only=True)
class DecodeAttention:
    """The form of a call, whose arguments are those of `DecodeInputs` that it has.

    Args:
        queries: T.
        heads: N.
        key_heads: K.
        width: H, a multiple of L.
        value_width: V, a multiple of L.
        page_size: C; None where each row has keys of its own.
        dtype: Of keys and values; queries and the result are float32.
        has_sinks: Whether there is one more logit for each head.
        is_scaled: Whether keys and values have scales.
        scale: Factor on the products.
        left: How many keys before its own a query sees; None is unbounded.
        soft_cap: What logits are capped at, smoothly.
    """

    queries: int
    heads: int
    key_heads: int
    width: int
    value_width: int
    page_size: int | None
    dtype: str
    has_sinks: bool
    is_scaled: bool
    scale: float
    left: int | None
    soft_cap: float | None

    @property
    def name(self) -> str:
        """Its name with all static choices in it."""
        choices = attrs.astuple(self)
        return "attention_" + "_".join(str(one).replace(".", "p") for one in choices)

    @property
    def group(self) -> int:
        """G."""
        return self.heads // self.key_heads

    def index_of(self, name: str) -> int:
        """Return which argument an array is."""
        has = {
            "q": True,
            "k": True,
            "v": True,
            "lengths": True,
            "page_table": self.page_size is not None,
            "sinks": self.has_sinks,
            "key_scale": self.is_scaled,
            "value_scale": self.is_scaled,
        }
        return [one for one, given in has.items() if given].index(name)

    def emit_num_parts(self, e: Emitter, buffers: Buffers, threads: Value) -> Value:
        """Write how many parts there are: rows, and heads apart where rows are few."""
        batch = buffers.size(0, 0)
        wanted = e.mul(threads, PARTS_PER_THREAD)
        some = e.div(e.add(wanted, e.sub(batch, 1)), batch)
        return e.mul(batch, e.max(e.min(some, self.key_heads), 1))

    def emit_part(self, e: Emitter, buffers: Buffers, part: Value, parts: Value) -> None:
        """Write the attention of some heads of a row."""
        per_row = e.div(parts, buffers.size(0, 0))
        row = e.div(part, per_row)
        index = e.sub(part, e.mul(row, per_row))
        first = e.div(e.mul(index, self.key_heads), per_row)
        behind = e.div(e.mul(e.add(index, 1), self.key_heads), per_row)
        _Row(self, e, buffers, row).emit(first, behind)


class _Row:
    """Some heads of a row."""

    def __init__(self, form: DecodeAttention, e: Emitter, buffers: Buffers, row: Value) -> None:
        self.form, self.e, self.row = form, e, row
        place = lambda name: buffers.argument(form.index_of(name))  # noqa: E731
        per_row = form.queries * form.heads
        self.q = e.at(place("q"), e.mul(row, per_row * form.width))
        self.o = e.at(buffers.result(0), e.mul(row, per_row * form.value_width))
        self.k, self.v = place("k"), place("v")
        if form.has_sinks:
            self.sinks = place("sinks")
        if form.is_scaled:
            self.key_scale, self.value_scale = place("key_scale"), place("value_scale")
        if form.page_size is None:
            self.capacity = buffers.size(1, 1)
        else:
            num_pages = buffers.size(form.index_of("page_table"), 1)
            self.capacity = e.mul(num_pages, form.page_size)
            self.table = e.at(place("page_table"), e.mul(row, num_pages), "int32")
            self.last_page = e.sub(buffers.size(1, 0), 1)
        length = e.load(e.at(place("lengths"), row, "int32"), "int32")
        self.length = e.min(length, self.capacity)
        # What a query has: its largest logit, the sums of probabilities by lane, and of values.
        self.largest = e.room(per_row)
        self.totals = e.room(per_row * e.lanes)
        self.values = e.room(per_row * form.value_width)
        # And for a block: products with a key, before their sum, and probabilities.
        self.products = e.room(per_row * e.lanes * e.lanes)
        self.weights = e.room(per_row * e.lanes)

    def emit(self, first_head: Value, behind: Value) -> None:
        """Write the attention of heads from the first on."""
        e, form = self.e, self.form
        per_head = form.group * form.queries

        def every_query(what: Callable[[Value, Value, Value], None]) -> None:
            def of_head(head: Value, _: object) -> tuple[()]:
                def of_query(i: Value, _: object) -> tuple[()]:
                    time = e.div(i, form.group)
                    in_group = e.sub(i, e.mul(time, form.group))
                    query_head = e.add(e.mul(head, form.group), in_group)
                    what(head, e.add(e.mul(time, form.heads), query_head), time)
                    return ()

                e.loop(0, per_head, 1, (), of_query)
                return ()

            e.loop(first_head, behind, 1, (), of_head)

        def every_token(
            position: Value, what: Callable[[Value, Value], Callable[[Value, Value, Value], None]]
        ) -> None:
            def of_token(lane: Value, _: object) -> tuple[()]:
                token = self._token(e.add(position, lane), first)
                every_query(what(e.mul(token, form.key_heads), lane))
                return ()

            e.loop(0, e.lanes, 1, (), of_token)

        every_query(self._start)
        first = e.whole(0)
        if form.left is not None:
            first = e.max(e.sub(self.length, form.queries + form.left), 0)

        def block(position: Value, _: object) -> tuple[()]:
            every_token(position, self._products)
            every_query(self._softmax(position, first))
            every_token(position, self._add_values)
            return ()

        # Blocks begin at multiples of L whatever the window is, so that a key is in the same lane
        # for every length, and sums are the same to the bit.
        start = e.mul(e.div(first, e.lanes), e.lanes)
        e.loop(start, self.length, e.lanes, (), block)
        every_query(self._finish)

    # -- Where things are --------------------------------------------------------------------

    def _token(self, position: Value, first: Value) -> Value:
        """Return the place in the cache of the token at a position, or of the nearest one."""
        e, form = self.e, self.form
        # The nearest key that there is, which is sound to read; its weight is 0.
        position = e.max(e.min(position, e.sub(self.length, 1)), first)
        if form.page_size is None:
            return e.add(e.mul(self.row, self.capacity), position)
        index = e.div(position, form.page_size)
        page = e.load(e.at(self.table, index, "int32"), "int32")
        # A table may contain anything where a row has no pages yet; reading there would end the
        # process.
        page = e.min(e.max(page, 0), self.last_page)
        place = e.sub(position, e.mul(index, form.page_size))
        return e.add(e.mul(page, form.page_size), place)

    # -- The softmax of a query --------------------------------------------------------------

    def _start(self, head: Value, query: Value, time: Value) -> None:
        e, form = self.e, self.form
        largest, total = e.number(_NOTHING), e.full(0.0)
        if form.has_sinks:
            largest = e.load(e.at(self.sinks, e.rem(query, form.heads)))
            total = e.with_lane(total, 0, e.number(1.0))
        e.store(largest, e.at(self.largest, query))
        e.store(total, e.at(self.totals, e.mul(query, e.lanes)))
        values = e.at(self.values, e.mul(query, form.value_width))
        for j in range(0, form.value_width, e.lanes):
            e.store(e.full(0.0), e.at(values, j))

    def _products(self, token: Value, lane: Value) -> Callable[[Value, Value, Value], None]:
        """Return what keeps the products of a query with a token's key, before their sum."""
        e, form = self.e, self.form

        def of_query(head: Value, query: Value, time: Value) -> None:
            key = e.at(self.k, e.mul(e.add(token, head), form.width), form.dtype)
            q = e.at(self.q, e.mul(query, form.width))
            # Two sums in turns: an addition waits for the one before it in its own sum only.
            found = [e.full(0.0), e.full(0.0)]
            for index, d in enumerate(range(0, form.width, e.lanes)):
                of_key = widened(e, e.at(key, d, form.dtype), form.dtype)[0]
                found[index % 2] = e.fma(e.load_vector(e.at(q, d)), of_key, found[index % 2])
            place = e.mul(e.add(e.mul(query, e.lanes), lane), e.lanes)
            e.store(e.build.fadd(*found), e.at(self.products, place))

        return of_query

    def _softmax(self, position: Value, first: Value) -> Callable[[Value, Value, Value], None]:
        """Return what turns a block's products into probabilities, and lessens those before."""
        e, form, build = self.e, self.form, self.e.build
        lanes = ir.Constant(e.int_vector, [ir.Constant(ir.IntType(32), i) for i in range(e.lanes)])
        positions = build.add(e.splat(e.to_short(position)), lanes)

        def of_query(head: Value, query: Value, time: Value) -> None:
            # Vectors of products, one for each of L tokens, become one vector of L logits: summed
            # token by token, each would need its own tree of shuffles.
            products = e.at(self.products, e.mul(query, e.lanes * e.lanes))
            places = [e.at(products, lane * e.lanes) for lane in range(e.lanes)]
            logits = e.sums([e.load_vector(place) for place in places])
            logits = build.fmul(logits, e.full(form.scale))
            if form.is_scaled:
                logits = build.fmul(logits, self._scales(self.key_scale, position, first, head))
            if form.soft_cap is not None:
                capped = tanh(e, build.fmul(logits, e.full(1.0 / form.soft_cap)))
                logits = build.fmul(capped, e.full(form.soft_cap))
            is_seen = self._is_seen(time, positions)
            # A finite number, so that the largest of a query that has seen nothing can be
            # subtracted from itself.
            logits = build.select(is_seen, logits, e.full(_NOTHING))
            largest_at = e.at(self.largest, query)
            before = e.splat(e.load(largest_at))
            largest = e.maximum(before, e.splat(e.largest(logits)))
            e.store(e.lane(largest, 0), largest_at)
            kept = exp(e, build.fsub(before, largest))
            # Selected again: of a block in which nothing is seen, exp(_NOTHING - _NOTHING) is 1.
            weights = build.select(is_seen, exp(e, build.fsub(logits, largest)), e.full(0.0))
            total_at = e.at(self.totals, e.mul(query, e.lanes))
            e.store(e.fma(e.load_vector(total_at), kept, weights), total_at)
            if form.is_scaled:
                weights = build.fmul(weights, self._scales(self.value_scale, position, first, head))
            e.store(weights, e.at(self.weights, e.mul(query, e.lanes)))
            values = e.at(self.values, e.mul(query, form.value_width))
            for j in range(0, form.value_width, e.lanes):
                e.store(build.fmul(e.load_vector(e.at(values, j)), kept), e.at(values, j))

        return of_query

    def _scales(self, scales: Value, position: Value, first: Value, head: Value) -> Value:
        """Return the scales of a block's keys, or of its values."""
        e, found = self.e, self.e.full(0.0)
        for lane in range(e.lanes):
            token = self._token(e.add(position, lane), first)
            place = e.add(e.mul(token, self.form.key_heads), head)
            found = e.with_lane(found, lane, e.load(e.at(scales, place)))
        return found

    def _is_seen(self, time: Value, positions: Value) -> Value:
        """Return which lanes hold a key that a query sees."""
        e, form, build = self.e, self.form, self.e.build
        own = e.add(e.sub(self.length, form.queries), time)
        # This hides lanes behind the row's end, too, as no query sees beyond its own key.
        is_seen = build.icmp_signed("<=", positions, e.splat(e.to_short(own)))
        if form.left is not None:
            first = e.splat(e.to_short(e.sub(own, form.left)))
            is_seen = build.and_(is_seen, build.icmp_signed(">=", positions, first))
        return is_seen

    def _add_values(self, token: Value, lane: Value) -> Callable[[Value, Value, Value], None]:
        """Return what adds a token's value to those that a query has seen."""
        e, form = self.e, self.form

        def of_query(head: Value, query: Value, time: Value) -> None:
            value = e.at(self.v, e.mul(e.add(token, head), form.value_width), form.dtype)
            # Value by value as they are stored, all heads of a token together: each line of the
            # cache is read once.
            weight = e.splat(e.load(e.at(self.weights, e.add(e.mul(query, e.lanes), lane))))
            held = e.at(self.values, e.mul(query, form.value_width))
            for j in range(0, form.value_width, e.lanes):
                one = widened(e, e.at(value, j, form.dtype), form.dtype)[0]
                e.store(e.fma(weight, one, e.load_vector(e.at(held, j))), e.at(held, j))

        return of_query

    def _finish(self, head: Value, query: Value, time: Value) -> None:
        e, form, build = self.e, self.form, self.e.build
        total = e.splat(e.sum(e.load_vector(e.at(self.totals, e.mul(query, e.lanes)))))
        is_any = build.fcmp_ordered(">", total, e.full(0.0))
        factor = build.fdiv(e.full(1.0), build.select(is_any, total, e.full(1.0)))
        held = e.at(self.values, e.mul(query, form.value_width))
        o = e.at(self.o, e.mul(query, form.value_width))
        for j in range(0, form.value_width, e.lanes):
            e.store(build.fmul(e.load_vector(e.at(held, j)), factor), e.at(o, j))
