/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Fixed point. The functions are global, so that each is verified once and callers see any number;
 * they have no branches that depend on data, as each would double the verifier's paths.
 */
#include "tables.h"

#define SHIFT 24
#define ONE (1LL << SHIFT)

static __always_inline __s64 least(__s64 a, __s64 b)
{
	__s64 d = a - b;

	barrier_var(d);
	return b + (d & (d >> 63));
}

static __always_inline __s64 greatest(__s64 a, __s64 b)
{
	__s64 d = a - b;

	barrier_var(d);
	return a - (d & (d >> 63));
}

static __always_inline __s64 clip(__s64 v, __s64 low, __s64 high)
{
	return least(greatest(v, low), high);
}

static __always_inline __s64 mul(__s64 a, __s64 b)
{
	return (a * b) >> SHIFT;
}

/* Natural logarithm of a whole number; that of 0 is 0. */
__noinline __s64 ln(__u64 x)
{
	__u64 top = 0, rest, more, m, i, f;
	__s64 log;

	if (!x)
		x = 1;
	/* The highest bit, by halving. */
	rest = x;
#pragma unroll
	for (int k = 5; k >= 0; k--) {
		more = rest >> (1 << k);
		more = ((0 - more) | more) >> 63;
		barrier_var(more);
		more <<= k;
		top += more;
		rest >>= more;
	}
	/* The bits below it: 10 for the table, 24 between its entries. */
	top &= 63;
	m = x << (63 - top);
	i = (m >> 53) & 1023;
	f = (m >> 29) & (ONE - 1);
	log = log2_table[i];
	log += (((__s64)log2_table[i + 1] - log) * (__s64)f) >> SHIFT;
	return ((((__s64)top << SHIFT) + log) * LN2) >> 30;
}

__noinline __s64 tanh_of(__s64 x)
{
	__s64 sign = x >> 63, v, y, f;
	__u64 i;

	barrier_var(sign);
	v = least((x ^ sign) - sign, 8 * ONE - 1);
	i = (v >> 16) & 2047;
	y = tanh_table[i];
	f = v & 65535;
	y += (((__s64)tanh_table[i + 1] - y) * f) >> 16;
	/* The curve lies above its chord by t (1 - t^2) f (1 - f) / 256^2. */
	y += (mul(y, ONE - mul(y, y)) * ((f * (65536 - f)) >> 16)) >> 32;
	return (y ^ sign) - sign;
}

/* e^x of x <= 0, with 30 bits after the point. */
__noinline __u64 exp_of(__s64 x)
{
	__u64 t = (__u64)(least(-x, 20 * ONE) * LOG2_E) >> SHIFT, g, i;
	__s64 y;

	/* 2^-t is 2^g / 2^(whole + 1), with g of 0 to 1. */
	g = ONE - (t & (ONE - 1));
	i = least(g >> 16, 255) & 255;
	y = exp2_table[i];
	y += (((__s64)exp2_table[i + 1] - y) * (__s64)(g - (i << 16))) >> 16;
	return (__u64)y >> (((t >> SHIFT) + 1) & 63);
}

/* The cube root of a whole number below 2^51. */
__noinline __u64 cube_root(__u64 x)
{
	__u64 y = 0, t, fits;

#pragma unroll
	for (int k = 16; k >= 0; k--) {
		t = y | (1ULL << k);
		fits = (t * t * t - x - 1) >> 63; /* 1 where t^3 <= x; a mask would fork paths */
		barrier_var(fits);
		y |= fits << k;
	}
	return y;
}
