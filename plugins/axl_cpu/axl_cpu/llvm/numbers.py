"""Numbers that are kept in fewer bits, made float32; and exp and tanh, a vector at a time."""

from llvmlite import ir

from axl_cpu.llvm.emitter import Emitter, Value

_LOG2_E = 1.4426950408889634
_LN_2_HIGH, _LN_2_LOW = 0.693359375, -2.12194440e-4
"""ln 2 in two parts, of which the first has few bits: products with whole numbers are exact."""
_SMALLEST, _LARGEST = -87.0, 88.0
"""Between them exp is a normal number of float32."""
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
"""Source: Moshier, Cephes, `expf`: of `(exp(x) - 1 - x) / x^2`, the highest power first."""


INT4_FACTORS = (2.0**-28, 2.0**-4)
"""What `widened` leaves the halves of bytes to be multiplied by."""


def widened(e: Emitter, pointer: Value, dtype: str) -> list[Value]:
    """Return the numbers at a place as float32: a vector, or two where two share a byte.

    Of int4 the first vector is of the low halves of bytes, the second of the high ones, both
    divided by `INT4_FACTORS`, which are powers of two.
    """
    kept = e.load_vector(pointer, dtype)
    if dtype == "float32":
        return [kept]
    build = e.build
    if dtype == "bfloat16":
        # bfloat16 is the upper half of float32.
        bits = build.shl(build.zext(kept, e.int_vector), e.short(16))
        return [build.bitcast(bits, e.vector)]
    if dtype == "float16":
        return [build.fpext(kept, e.vector) if e.processor.widens_halves else _of_half(e, kept)]
    if dtype == "int8":
        return [e.to_float(build.sext(kept, e.int_vector))]
    if dtype == "int4":
        # Left at the top of their integers, where they have a sign: to shift them down again
        # costs more than to multiply sums by `INT4_FACTORS`.
        wide = build.sext(kept, e.int_vector)
        low, high = build.shl(wide, e.short(28)), build.and_(wide, e.short(-16))
        return [e.to_float(low), e.to_float(high)]
    return [_of_float8(e, build.zext(kept, e.int_vector))]


def _of_half(e: Emitter, kept: Value) -> Value:
    """Return numbers of 5 bits of exponent and 10 of mantissa."""
    build = e.build
    bits = build.zext(build.bitcast(kept, ir.VectorType(ir.IntType(16), e.lanes)), e.int_vector)
    magnitude = build.and_(bits, e.short(0x7FFF))
    # The exponents' biases differ by 112: 127 - 15.
    shifted = build.add(build.shl(magnitude, e.short(13)), e.short(112 << 23))
    is_number = build.icmp_unsigned("<", magnitude, e.short(0x7C00))
    endless = build.add(shifted, e.short(112 << 23))  # infinity, and what is not a number
    normal = build.bitcast(build.select(is_number, shifted, endless), e.vector)
    return _signed(e, bits, 16, _with_subnormal(e, normal, magnitude, 10, 2.0**-24))


def _of_float8(e: Emitter, bits: Value) -> Value:
    """Return numbers of 4 bits of exponent and 3 of mantissa; nan of them is not a number."""
    build = e.build
    magnitude = build.and_(bits, e.short(0x7F))
    # The exponents' biases differ by 120: 127 - 7.
    shifted = build.add(build.shl(magnitude, e.short(20)), e.short(120 << 23))
    normal = build.bitcast(shifted, e.vector)
    wide = _with_subnormal(e, normal, magnitude, 3, 2.0**-9)
    is_nan = build.icmp_unsigned("==", magnitude, e.short(0x7F))
    return _signed(e, bits, 8, build.select(is_nan, e.full(float("nan")), wide))


def _with_subnormal(
    e: Emitter, normal: Value, magnitude: Value, mantissa: int, smallest: float
) -> Value:
    """Return numbers, of which those without exponent count steps of the smallest one."""
    subnormal = e.build.fmul(e.to_float(magnitude), e.full(smallest))
    is_subnormal = e.build.icmp_unsigned("<", magnitude, e.short(1 << mantissa))
    return e.build.select(is_subnormal, subnormal, normal)


def _signed(e: Emitter, bits: Value, num_bits: int, wide: Value) -> Value:
    """Return numbers with the sign that their bits have first."""
    build = e.build
    sign = build.shl(build.and_(bits, e.short(1 << (num_bits - 1))), e.short(32 - num_bits))
    return build.bitcast(build.or_(build.bitcast(wide, e.int_vector), sign), e.vector)


def exp(e: Emitter, x: Value) -> Value:
    """Return e to the power of x, to float32 rounding; x below -87 as if it was that."""
    build = e.build
    given, x = x, _clipped(e, x)
    power = _rounded(e, build.fmul(x, e.full(_LOG2_E)))
    wide = e.to_float(power)
    # In two steps: with ln 2 in one float32 the difference would lose the bits that the
    # polynomial is to see.
    x = e.fma(wide, e.full(-_LN_2_HIGH), x)
    x = e.fma(wide, e.full(-_LN_2_LOW), x)
    poly = e.full(_EXP[0])
    for factor in _EXP[1:]:
        poly = e.fma(poly, x, e.full(factor))
    y = build.fadd(e.fma(poly, build.fmul(x, x), x), e.full(1.0))
    # Times a power of two, by adding to the exponent. x is clipped so that it stays a normal
    # number.
    bits = build.add(build.bitcast(y, e.int_vector), build.shl(power, e.short(23)))
    # Clipping takes NaN for a bound: it would come out as a plausible number.
    is_number = build.fcmp_ordered("ord", given, given)
    return build.select(is_number, build.bitcast(bits, e.vector), given)


def tanh(e: Emitter, x: Value) -> Value:
    """Return the hyperbolic tangent of x, to an absolute error of float32 rounding."""
    build = e.build
    doubled = exp(e, build.fmul(x, e.full(2.0)))
    return build.fsub(e.full(1.0), build.fdiv(e.full(2.0), build.fadd(doubled, e.full(1.0))))


def _clipped(e: Emitter, x: Value) -> Value:
    build = e.build
    low = build.select(build.fcmp_ordered(">", x, e.full(_SMALLEST)), x, e.full(_SMALLEST))
    return build.select(build.fcmp_ordered("<", low, e.full(_LARGEST)), low, e.full(_LARGEST))


def _rounded(e: Emitter, x: Value) -> Value:
    """Return the nearest integers: adding 1.5 * 2^23 leaves them in the last bits."""
    build = e.build
    shifted = build.fadd(x, e.full(12582912.0))
    return build.sub(build.bitcast(shifted, e.int_vector), e.short(0x4B400000))
