/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What a policy sees: distrlcc/env/observations.py in whole numbers, for one connection.
 * 'distrlcc kernel check' compares what follows.
 */
#define LN_MILLION ln(1000000)
#define LN_400 ln(400)
#define WINDOW_US 4000000
#define LEAST_PATH_US 2000
#define TENTH 6553600000ULL	   /* 0.1 packets, as a rate * 1 us */
#define RATE_SECOND 65536000000ULL /* 1 packet */
/* Bounds that keep products within 63 bits; windows are at most 32,768 packets. */
#define MOST_RATE (1LL << 38)
#define MOST_US (1LL << 24)
#define MOST_PACKETS ((1LL << 16) - 1)
#define INDIGO_RATE 258385LL /* 1504 * 8 / 10^6 / 200 Mbit/s, 2^32 times */
#define CLIP (10 * ONE)

/* The lesser, where 0 means none. */
static __always_inline __u64 least_of(__u64 a, __u64 b)
{
	return !a ? b : !b ? a : a < b ? a : b;
}

static __always_inline __u64 turn_windows(struct interval *now, __u64 rtt, __u64 length,
					  __u64 *window, __u64 *newest, __u64 *before)
{
	*window += now->duration;
	if (*window >= length) {
		*before = *newest;
		*newest = 0;
		*window = 0;
	}
	if (now->acked)
		*newest = least_of(*newest, rtt);
	return least_of(*newest, *before);
}

/* Least RTT of the last one to two windows, us; 0: none. Global, as each has four paths. */
__noinline __u64 least_long(struct connection *c)
{
	if (!c)
		return 0;
	return turn_windows(&c->now, c->now.rtt_min, WINDOW_US, &c->window, &c->least,
			    &c->least_before);
}

__noinline __u64 least_recent(struct connection *c, __u64 length)
{
	if (!c)
		return 0;
	return turn_windows(&c->now, c->now.rtt_min, length, &c->recent_window,
			    &c->recent_least, &c->recent_least_before);
}

/* The least smoothed RTT likewise, in 1/256 us. */
__noinline __u64 least_smoothed(struct connection *c)
{
	if (!c)
		return 0;
	return turn_windows(&c->now, c->mean, WINDOW_US, &c->calm_window, &c->calm_least,
			    &c->calm_least_before);
}

/* ln((rate * time + 0.1) / cwnd) */
__noinline __s64 share_of(__u64 rate, __u64 us, __s64 ln_cwnd)
{
	us = least(us, MOST_US);
	return ln(rate * us + TENTH) - ln(RATE_SECOND) - ln_cwnd;
}

/* An average moved towards a value. 0 means none yet, and stays 1 where a float would not be 0. */
__noinline __s64 moved(__s64 old, __s64 value, __s64 share)
{
	__s64 to = old + mul(share, value - old);

	if (!old)
		return value;
	if (share < ONE && to < 1)
		return 1;
	return greatest(to, 0);
}

/* The step's part of a time, at most 1. */
__noinline __s64 part_of(__u64 duration, __u64 time)
{
	if (duration >= time)
		return ONE;
	return (duration << SHIFT) / time;
}

/* The step's mean RTT as a logarithm, or the last one's. */
__noinline __s64 ln_mean_rtt(struct connection *c)
{
	if (!c)
		return 0;
	if (c->now.acked && c->now.rtt_count)
		return ln(c->now.rtt_sum) - ln(c->now.rtt_count);
	return ln(c->now.rtt_last);
}

/* The least RTT that the path is taken to have, us. */
__noinline __u64 path_rtt(struct connection *c)
{
	__u64 rtt;

	if (!c)
		return 0;
	rtt = least_of(c->least, c->least_before);
	if (!c->now.min_rtt)
		return 100000;
	return greatest(rtt ? rtt : c->now.min_rtt, LEAST_PATH_US);
}

/* The same without a step's end, and however short. */
static __always_inline __u64 path_least(struct connection *c)
{
	__u64 rtt = least_of(c->least, c->least_before);

	return rtt ? rtt : c->now.min_rtt;
}

__noinline int see_delay(struct connection *c, __u64 min_rtt)
{
	__s64 ln_min = ln(min_rtt), delay, weight;
	__u64 duration;

	if (!c)
		return 0;
	duration = c->now.duration;
	c->idle = c->now.acked ? 0 : c->idle + duration;
	c->age += duration;
	delay = clip(greatest(ln_mean_rtt(c), ln(c->idle)) - ln_min, 0, ln(401));
	if (!c->now.min_rtt)
		delay = 0;
	c->observation[0] = delay;
	c->observation[2] = delay - c->delay;
	c->delay = delay;
	weight = part_of(duration, min_rtt);
	c->slow_delay += mul(weight, delay - c->slow_delay) >> 2;
	c->observation[1] = c->slow_delay;
	c->observation[7] = ln(min_rtt * 30) - LN_MILLION;
	c->observation[10] = ln(c->idle + min_rtt) - ln_min;
	c->observation[11] = least(ln(c->age + min_rtt) - ln_min, 3 * ONE) - 3 * ONE;
	return 0;
}

/* The step's delivery rate. */
__noinline __s64 rate_of(struct connection *c)
{
	if (!c)
		return 0;
	return least((c->now.acked * 1000000 << 16) / (c->now.duration | !c->now.duration),
		     MOST_RATE);
}

/* What a packet counts for, at most ONE: less where the window has more than 25,000 a second. */
__noinline __u64 scale_of(struct connection *c, __u64 min_rtt)
{
	__u64 packets;

	if (!c)
		return ONE;
	packets = greatest(c->cwnd, ONE) >> (SHIFT - 8);
	return least((least(min_rtt, MOST_US) << (SHIFT + 8)) / (40 * (packets | !packets)), ONE);
}

__noinline int see_rates(struct connection *c, __u64 min_rtt, __s64 ln_cwnd)
{
	__s64 rate = rate_of(c), weight, lost, cwnd;
	__u64 scale = scale_of(c, min_rtt);

	if (!c)
		return 0;
	weight = part_of(c->now.duration, min_rtt);
	if (!c->fast && c->now.acked)
		c->fast = c->slow = rate;
	else if (c->fast) {
		c->fast = moved(c->fast, rate, weight);
		c->slow += mul(weight, rate - c->slow) >> 2;
	} else
		c->slow += mul(weight, rate - c->slow) >> 2;
	c->lately = greatest(c->fast, c->lately - (mul(c->lately, weight) >> 4));
	c->top = greatest(c->fast, c->top - mul(c->top, weight * 167772 >> SHIFT));
	lost = c->now.lost + c->now.acked;
	lost = lost ? (c->now.lost << SHIFT) / (__u64)lost : 0;
	c->loss += (lost - c->loss) * 1677722 >> SHIFT;
	c->observation[3] = share_of(c->fast, min_rtt, ln_cwnd);
	c->observation[4] = share_of(c->slow, min_rtt, ln_cwnd);
	c->observation[5] = share_of(c->top, min_rtt, ln_cwnd);
	c->observation[6] = ln_cwnd + ln(scale) - ln(ONE) - 4 * ONE;
	c->observation[8] = lost;
	c->observation[9] = c->loss;
	cwnd = greatest(c->cwnd, ONE);
	c->observation[12] = least(((__u64)least(c->now.inflight, MOST_PACKETS) << 2 * SHIFT) /
				   (__u64)(cwnd | !cwnd), 2 * ONE);
	c->observation[13] = ln(c->now.acked * scale + ONE) - ln(ONE) - 2 * ONE;
	return 0;
}

/* What the last round trips alone tell; returns their least RTT, us. */
__noinline __u64 see_recent(struct connection *c, __u64 min_rtt, __s64 ln_cwnd)
{
	__s64 ln_recent, ln_min = ln(min_rtt), weight, rate = rate_of(c), mean;
	__u64 unseen, recent;

	if (!c)
		return 0;
	unseen = greatest(c->now.rtt_last, min_rtt);
	recent = least_of(c->recent_least, c->recent_least_before);
	recent = least_recent(c, 2 * greatest(recent ? recent : unseen, LEAST_PATH_US));
	recent = greatest(recent ? recent : unseen, LEAST_PATH_US);
	ln_recent = ln(recent);
	c->observation[14] = clip(ln_recent - ln_min, 0, LN_400);
	c->observation[15] =
		clip((c->now.acked ? ln_mean_rtt(c) : ln_recent) - ln_recent, 0, LN_400);
	weight = part_of(c->now.duration, recent);
	c->quick = moved(c->quick, rate, least(3 * weight, ONE));
	c->cwnd_fast = moved(c->cwnd_fast, ln_cwnd, weight);
	c->cwnd_slow = moved(c->cwnd_slow, ln_cwnd, weight >> 2);
	c->observation[16] = share_of(c->fast, recent, ln_cwnd);
	c->observation[17] = share_of(c->quick, recent, ln_cwnd);
	c->observation[18] = share_of(rate, recent, ln_cwnd);
	c->observation[19] = ln_cwnd - c->cwnd_fast;
	c->observation[20] = ln_cwnd - c->cwnd_slow;
	/* Packets that wait, from times in 1/16 us. */
	mean = recent << 4;
	if (c->now.acked && c->now.rtt_count)
		mean = (c->now.rtt_sum << 4) / c->now.rtt_count;
	mean = clip(mean - (__s64)(min_rtt << 4), 0, MOST_US << 4);
	rate = mul(c->fast, scale_of(c, min_rtt));
	c->observation[21] = ln((rate >> 4) * mean + RATE_SECOND) - ln(RATE_SECOND);
	unseen = c->now.min_rtt ? greatest(c->now.min_rtt, LEAST_PATH_US) : min_rtt;
	c->observation[22] = clip(ln_min - ln(unseen), 0, LN_400);
	return recent;
}

/* What tells a jittering path from a queue. */
__noinline int see_spread(struct connection *c, __u64 min_rtt)
{
	__s64 away, ln_least;

	if (!c)
		return 0;
	if (c->now.acked && c->now.rtt_count) {
		ln_least = ln(greatest(c->now.rtt_min, LEAST_PATH_US));
		c->floor = clip(ln_least - ln(min_rtt), 0, LN_400);
		away = c->floor - c->quantile;
		c->quantile += away < 0 ? away >> 3 : away >> 6;
		c->spread = clip(ln(c->now.rtt_max) - ln_least, 0, LN_400);
		c->slow_spread += (c->spread - c->slow_spread) >> 4;
	}
	c->observation[23] = c->floor;
	c->observation[24] = c->quantile;
	c->observation[25] = c->observation[0] - c->quantile;
	c->observation[26] = c->spread;
	c->observation[27] = c->slow_spread;
	return 0;
}

/* The second yardstick: the least RTT smoothed over a round trip, of `recent` us. */
__noinline int see_noise(struct connection *c, __u64 min_rtt, __u64 recent, __s64 ln_cwnd)
{
	__s64 away, sign;
	__u64 calm;

	if (!c)
		return 0;
	if (c->now.acked && c->now.rtt_count) {
		calm = (c->now.rtt_sum << 8) / c->now.rtt_count;
		c->mean = moved(c->mean, calm, part_of(c->now.duration, recent));
		away = ln(greatest(calm, LEAST_PATH_US << 8)) -
		       ln(greatest(c->mean, LEAST_PATH_US << 8));
		sign = away >> 63;
		barrier_var(sign);
		c->wander += (((away ^ sign) - sign) - c->wander) >> 4;
	}
	calm = least_smoothed(c);
	calm = greatest(calm, min_rtt << 8);
	c->observation[28] = clip(ln(calm) - ln(min_rtt << 8), 0, LN_400);
	c->observation[29] = c->observation[0] - c->observation[28];
	c->observation[30] = share_of(c->fast, calm >> 8, ln_cwnd);
	c->observation[31] = share_of(c->top, calm >> 8, ln_cwnd);
	c->observation[32] = c->wander;
	return 0;
}

__noinline int see_indigo(struct connection *c)
{
	if (!c)
		return 0;
	c->observation[0] = (c->now.delay << 8) / 200000;
	c->observation[1] = c->now.delivery_rate * INDIGO_RATE >> SHIFT;
	c->observation[2] = c->now.send_rate * INDIGO_RATE >> SHIFT;
	c->observation[3] = (__u64)c->cwnd / 5000;
	c->observation[4] = (c->now.min_rtt << SHIFT) / 100000;
	return 0;
}

/* Aurora's and Genet's newest interval, after nine older ones. */
__noinline int see_history(struct connection *c, __u32 genet)
{
	__u64 acked, sent, ever, each;
	__s64 rtt, change, sign;

	if (!c)
		return 0;
	acked = c->now.acked;
	sent = c->now.sent;
	ever = c->now.min_rtt;
	/* Mean RTTs in us, with 16 bits after the point. */
	rtt = c->rtt;
	change = 0;
	if (acked && c->now.rtt_count) {
		rtt = (c->now.rtt_sum << 16) / c->now.rtt_count;
		change = c->rtt ? rtt - c->rtt : 0;
	}
	c->rtt = rtt;
	for (int k = 0; k < 27; k++)
		c->observation[k] = c->observation[k + 3];
	sign = change >> 63;
	barrier_var(sign);
	change = (__u64)((change ^ sign) - sign) << 8;
	change = (__u64)change / (c->now.duration | !c->now.duration);
	c->observation[27] = clip((change ^ sign) - sign, -ONE, (genet ? 1 : 10) * ONE);
	if (genet) {
		c->observation[28] = ever ? clip(ln(rtt) - ln(ever << 16), 0, ln(1001)) : 0;
		c->observation[29] = ln(10 * acked + 1) - ln(10 * sent + 1);
		return 0;
	}
	c->observation[28] = 0;
	if (ever)
		c->observation[28] =
			(__u64)clip((__s64)(((__u64)rtt << 8) / ever) - ONE, 0, 100 * ONE) / 10;
	each = ((sent + !acked) << SHIFT) / (acked | !acked);
	c->observation[29] = (__s64)((__u64)least(each, 101 * ONE) / 10) - ONE / 10;
	return 0;
}

/* Turns c->now into c->observation. */
__noinline int observe(struct connection *c)
{
	__u32 space;
	__u64 min_rtt, recent;
	__s64 ln_cwnd;

	if (!c)
		return 0;
	space = POLICY_OF(c)->observation;
	c->now.duration |= !c->now.duration;
	least_long(c);
	if (space == INDIGO || space == INDIGO_MIN_RTT)
		return see_indigo(c);
	if (space == AURORA || space == GENET)
		return see_history(c, space == GENET);
	ln_cwnd = ln(greatest(c->cwnd, ONE)) - ln(ONE);
	min_rtt = path_rtt(c);
	see_delay(c, min_rtt);
	see_rates(c, min_rtt, ln_cwnd);
	if (space == SCALE_FREE)
		return 0;
	recent = see_recent(c, min_rtt, ln_cwnd);
	if (space != SCALE_FREE_RECENT)
		see_spread(c, min_rtt);
	if (space == SCALE_FREE_NOISE)
		see_noise(c, min_rtt, recent, ln_cwnd);
	return 0;
}
