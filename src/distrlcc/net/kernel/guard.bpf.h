/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The guard: a connection that loses more than a bound for some epochs in a row has no greater window
 * than CUBIC's rule gives (RFC 9438, without slow start) until it has lost no more than that for long
 * enough: the longer, the more often it was so. An epoch is a round trip, or up to EPOCH_RTTS of them
 * until it has EPOCH_PACKETS; of fewer than FEW_PACKETS it says nothing. Where packets queue, half the
 * bound is enough. Where they do not, they are mostly lost at random or in a queue of a few packets,
 * where a smaller window gains nothing: it takes three times the bound, and one and a half standard
 * deviations. (Behind a policer, which has no queue, a smaller one would lose less.)
 *
 * Outside of what policies hold, on paths that are short or noisy, CUBIC's rule has the window alone,
 * with slow start: distrlcc/control/windows.py says when, which has the same rule.
 */
#define EPOCH_PACKETS 64
#define EPOCH_RTTS 8
#define FEW_PACKETS 8
#define CALM_EPOCHS 8
#define UNQUEUED 3
#define BETA 11744051LL	     /* 0.7 */
#define CONVERGENCE 14260634LL /* (1 + 0.7) / 2 */
#define RENO 8882055LL	     /* 3 (1 - 0.7) / (1 + 0.7) */
#define LEAST_WINDOW (2 * ONE)
#define MOST_WINDOW (32768 * ONE) /* products with ONE fit */
#define NOISY_ROUNDS 12
#define NOISY_PACKETS 8
#define NOISE_OF_PATH 5 /* a shift: 1/32 of the least RTT */
#define SPREAD_US 1750
#define QUIET_US 10000000ULL
#define GENTLE 269 /* 1.05 */
#define ROOM 2
#define LOSS_RTTS 10

/* The cubic begins where the window is. */
static __always_inline void begin_epoch(struct guard *g, struct acked *a)
{
	g->slow = 0;
	g->reno = g->window;
	g->epoch = a->now;
	/* K = cube root(packets / 0.4), in ms. */
	g->turn = cube_root((__u64)(greatest(g->greatest - g->window, 0) >> 8) * 2500000000ULL >> 16);
}

/* A loss: the window falls, and time begins at which it will be as before. */
static __always_inline void reduce(struct connection *c, struct acked *a)
{
	struct guard *g = &c->guard;
	__s64 before = g->window;

	g->greatest = before < g->greatest ? mul(before, CONVERGENCE) : before;
	g->window = greatest(mul(before, BETA), LEAST_WINDOW);
	g->reduced = a->delivered;
	begin_epoch(g, a);
}

/* Growth along the cubic, or as Reno if that is more. */
static __always_inline void grow(struct connection *c, struct acked *a)
{
	struct guard *g = &c->guard;
	__u64 packets = (__u64)g->window >> SHIFT, acked;
	__s64 t, target;

	/* Slow start, which ends with the first loss, or where the last one left the window. */
	if (g->slow) {
		g->window += least(a->acked, 32768) << SHIFT;
		if (g->greatest && g->window >= mul(g->greatest, BETA))
			begin_epoch(g, a);
		return;
	}
	packets |= !packets;
	acked = least(a->acked, packets);
	t = clip((__s64)((a->now - g->epoch) / 1000) - (__s64)g->turn, -65536, 65535);
	target = g->greatest + (t * t * t * 7037 >> 20); /* 0.4 t^3, t in s */
	g->reno += (__u64)(acked * RENO) / packets;
	target = clip(target, g->window, g->window + (g->window >> 1));
	g->window += (__u64)((target - g->window) >> 8) * acked / packets << 8;
	g->window = greatest(g->window, g->reno);
}

/* Adds to the time of the rule that is on, if one is. */
static __always_inline void count_guarded(struct connection *c, __u64 now)
{
	struct guard *g = &c->guard;

	if (g->on == OUTSIDE)
		__sync_fetch_and_add(&stats.outside_us, now - g->since);
	else if (g->on)
		__sync_fetch_and_add(&stats.guard_us, now - g->since);
	g->since = now;
}

/* The window that CUBIC's rule begins with; a policy of rates has none of its own. */
static __always_inline __s64 held_window(struct connection *c, struct acked *a)
{
	return POLICY_OF(c)->actions ? c->cwnd : (__s64)least(a->inflight, 32768) << SHIFT;
}

static __always_inline void enter_guard(struct connection *c, struct acked *a)
{
	struct guard *g = &c->guard;

	g->window = held_window(c, a);
	g->on = 1;
	g->entries++;
	g->calm = 0;
	g->since = a->now;
	g->greatest = 0;
	reduce(c, a);
	c->cwnd = g->window;
	__sync_fetch_and_add(&stats.guard_entries, 1);
}

static __always_inline void leave_guard(struct connection *c, struct acked *a)
{
	struct policy *p = POLICY_OF(c);
	struct guard *g = &c->guard;
	__u64 rate;

	count_guarded(c, a->now);
	g->on = 0;
	g->bad = g->calm = 0;
	if (!p->actions) { /* what it sent lately */
		rate = ((__u64)c->cwnd >> 8) * 1000000 / (c->now.rtt_last | !c->now.rtt_last);
		c->rate = clip(rate, p->least_rate, p->greatest_rate);
		c->cwnd = p->first_window;
	}
}

/* Compares a round's RTTs with those of the last one to two windows, and begins the next. */
static __always_inline void look_for_noise(struct guard *g, struct acked *a, __u64 held)
{
	__u64 mean = g->noise_sum / (g->noise_count | !g->noise_count), least_rtt = g->noise_least;
	__u64 values[3] = { least_rtt, mean, greatest(mean - least_rtt, 1) };
	__u64 time = a->now - g->noise_begun, path, noise, most, spread;
	bool full = a->now - g->window_begun >= WINDOW_US;

	/* What they had least, each in its own round. */
	for (int k = 0; k < 3; k++) {
		if (full) {
			g->before[k] = g->lowest[k];
			g->lowest[k] = 0;
		}
		g->lowest[k] = least_of(g->lowest[k], values[k]);
	}
	if (full)
		g->window_begun = a->now;
	path = least_of(g->lowest[0], g->before[0]);
	noise = least_of(g->lowest[1], g->before[1]) - path;
	most = greatest(held, path >> NOISE_OF_PATH);
	spread = least_of(g->lowest[2], g->before[2]);
	g->noisy = noise > most && spread > SPREAD_US && noise * g->noise_acked > time &&
		   2 * values[2] <= 3 * noise ? g->noisy + 1 : 0;
	g->quiet = 2 * noise < most || 2 * spread < SPREAD_US ? g->quiet + time : 0;
	g->noise_acked = g->noise_sum = g->noise_count = g->noise_least = 0;
	g->noise_begun = a->now;
	g->noise_round = a->delivered;
}

/* Lets CUBIC's rule have the window where the path is outside of what policies hold. */
static __always_inline void leave_or_stay(struct connection *c, struct acked *a)
{
	struct guard *g = &c->guard;
	__u64 path = least_of(least_of(g->lowest[0], g->before[0]), g->noise_least), patience;
	bool is_short = path && path < LEAST_PATH_US;

	if (g->on == OUTSIDE) {
		patience = g->noisy_entries ? QUIET_US << least(g->noisy_entries - 1, 5) : 0;
		if (!is_short && g->quiet >= patience)
			leave_guard(c, a);
		return;
	}
	if (!is_short && g->noisy < NOISY_ROUNDS)
		return;
	count_guarded(c, a->now);
	if (!g->on)
		g->since = a->now;
	g->window = clip(held_window(c, a), LEAST_WINDOW, MOST_WINDOW);
	g->on = OUTSIDE;
	g->slow = 1;
	g->quiet = 0;
	g->reduced = a->prior_delivered;
	c->cwnd = g->window;
	if (is_short)
		__sync_fetch_and_add(&stats.short_entries, 1);
	else
		__sync_fetch_and_add(&stats.noisy_entries, 1);
	g->noisy_entries += !is_short;
}

/* Whether the queue has no room: packets were lost lately, and hardly any of its own wait. */
static __always_inline bool has_no_room(struct connection *c, struct acked *a)
{
	__u64 srtt = c->srtt >> 3, waiting = greatest(srtt - c->now.min_rtt, 0);

	if (a->lost)
		c->guard.lossy_until = a->now + LOSS_RTTS * greatest(srtt, POLICY_OF(c)->step_us);
	if (!POLICY_OF(c)->growth || !c->lately || a->now >= c->guard.lossy_until)
		return 0;
	/* The rate has 16 bits after the point. */
	return least(waiting, MOST_US) * ((__u64)c->lately >> 8) < ROOM * 1000000ULL << 8;
}

/* Takes one acknowledgement in; moves c->cwnd where the guard is on. */
__noinline int guard(struct connection *c, struct acked *a)
{
	struct policy *p;
	struct guard *g;
	__u64 times, lost, packets, expected, over, queued, bad;

	if (!c || !a)
		return 0;
	p = POLICY_OF(c);
	g = &c->guard;
	/* CUBIC's rule: one reduction per round trip. */
	if (g->on) {
		if (a->lost && (__s32)(a->prior_delivered - g->reduced) >= 0)
			reduce(c, a);
		else if (a->state < TCP_CA_Recovery && !a->limited &&
			 a->inflight + 2 * a->acked >= (__u64)g->window >> SHIFT)
			grow(c, a);
		g->window = least(g->window, g->on == OUTSIDE ? MOST_WINDOW : p->greatest_window);
		c->cwnd = p->actions && g->on != OUTSIDE ? least(c->cwnd, g->window) : g->window;
	}
	/* Noise, and short paths. */
	g->noise_acked += a->acked;
	g->noise_sum += a->rtt_sum;
	g->noise_count += a->rtt_count;
	g->noise_least = least_of(g->noise_least, a->rtt_least);
	if ((__s32)(a->prior_delivered - g->noise_round) >= 0 && g->noise_count &&
	    g->noise_acked >= NOISY_PACKETS)
		look_for_noise(g, a, p->noise_us);
	if (p->noise_us)
		leave_or_stay(c, a);
	else if (g->on == OUTSIDE) /* a swap */
		leave_guard(c, a);
	/* The epoch's loss. */
	g->no_room = has_no_room(c, a);
	g->packets += a->acked + a->lost;
	g->lost += a->lost;
	g->least = least_of(g->least, c->now.rtt_min);
	if ((__s32)(a->prior_delivered - g->round) < 0 ||
	    (g->packets < EPOCH_PACKETS && a->now - g->begun < EPOCH_RTTS * c->now.rtt_last))
		return 0;
	packets = least(g->packets, 1 << 20);
	lost = least(g->lost, 1 << 20) << SHIFT;
	queued = 2 * g->least > 3 * least(path_least(c), 4 * c->now.min_rtt);
	g->begun = a->now;
	g->round = a->delivered;
	g->packets = g->lost = g->least = 0;
	if (packets < FEW_PACKETS)
		return 0;
	/* In packets, ONE each; lost > expected + 1.5 sqrt(expected) without a root. */
	expected = packets * p->guard_loss * (queued ? 1 : UNQUEUED);
	over = lost > expected ? (lost - expected) >> (SHIFT - 8) : 0;
	bad = queued ? 2 * lost > expected : 4 * over * over > 9 * (expected >> (SHIFT - 16));
	g->bad = bad ? g->bad + 1 : 0;
	g->calm = lost <= expected ? g->calm + 1 : 0;
	/* In, or out. */
	times = g->entries < 6 ? g->entries : 6;
	if (!g->on && p->guard_loss && g->bad >= p->guard_rounds)
		enter_guard(c, a);
	else if (g->on == 1 && g->calm >= (CALM_EPOCHS / 2) << times)
		leave_guard(c, a);
	return 0;
}
