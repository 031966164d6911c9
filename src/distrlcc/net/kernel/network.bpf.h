/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The network, the draw, and the window or rate that follow from c->observation. */
#define FIRST 0 /* two vectors in c->buffer, which the layers use in turn */
#define SECOND MAX_ROWS
#define BUFFER_MASK (2 * MAX_ROWS - 1)

struct product {
	struct connection *c;
	__u64 weights, columns, biases, from, to, sum;
};

/* One row of a layer. Weights have no sign, as sign extension costs two instructions: 2^31 stands
 * for 0, and is taken off with the sum. What overflows on the way comes back.
 */
static long row(__u32 i, struct product *m)
{
	struct policy *p = POLICY_OF(m->c);
	__u64 place = (m->weights + (__u64)i * m->columns) & (MAX_WEIGHTS - 1);
	const __u32 *w = p->weights + place;
	__s64 *x = m->c->buffer + (m->from & BUFFER_MASK);
	__u64 n = m->columns, sum = 0;

	for (int k = 0; k < MAX_COLUMNS; k += 16) {
		if (k >= n)
			break;
#pragma unroll
		for (int u = 0; u < 16; u++)
			sum += (__u64)w[k + u] * (__u64)x[k + u];
	}
	sum = (__s64)(sum - (m->sum << 31)) >> WEIGHT_SHIFT;
	sum += p->biases[(m->biases + i) & (MAX_BIASES - 1)];
	m->c->buffer[(m->to + i) & BUFFER_MASK] = sum;
	return 0;
}

/* buffer[to..] = activation(W buffer[from..] + b) */
__noinline int layer(struct connection *c, __u32 which, __u32 from, __u32 to)
{
	struct product m = {};
	struct layer *l;
	__u32 n, activation;
	__s64 sum = 0, v;

	if (!c)
		return 0;
	l = &POLICY_OF(c)->layers[which < MAX_LAYERS ? which : 0];
	n = l->columns;
	for (int k = 0; k < MAX_COLUMNS; k++) {
		if (k >= n)
			break;
		sum += c->buffer[(from + k) & BUFFER_MASK];
	}
	m.c = c;
	m.weights = l->weights;
	m.columns = n;
	m.biases = l->bias;
	m.from = from;
	m.to = to;
	m.sum = sum;
	n = l->rows;
	activation = l->activation;
	if (n > MAX_ROWS)
		n = MAX_ROWS;
	bpf_loop(n, row, &m, 0);
	if (activation == LINEAR)
		return 0;
	for (int k = 0; k < MAX_ROWS; k++) {
		if (k >= n)
			break;
		v = c->buffer[(to + k) & BUFFER_MASK];
		if (activation == RELU)
			v &= ~(v >> 63);
		else
			v = tanh_of(v);
		c->buffer[(to + k) & BUFFER_MASK] = v;
	}
	return 0;
}

static __always_inline __s64 sigmoid(__s64 x)
{
	return (ONE + tanh_of(x >> 1)) >> 1;
}

/* One cell of an LSTM; gates lie at m->to in torch's order: i, f, g, o. */
static long cell(__u32 k, struct product *m)
{
	struct connection *c = m->c;
	__u32 size = m->columns, at = m->to + k;
	__s64 i, f, g, o, state;

	k &= MAX_STATE - 1;
	i = sigmoid(c->buffer[at & BUFFER_MASK]);
	f = sigmoid(c->buffer[(at + size) & BUFFER_MASK]);
	g = tanh_of(c->buffer[(at + 2 * size) & BUFFER_MASK]);
	o = sigmoid(c->buffer[(at + 3 * size) & BUFFER_MASK]);
	state = clip(mul(f, c->cell[k]) + mul(i, g), -CELL_GREATEST, CELL_GREATEST);
	c->cell[k] = state;
	c->hidden[k] = mul(o, tanh_of(state));
	return 0;
}

/* One cell of a minGRU, h += z (g - h); gates lie at m->to: z, g. */
static long min_gru_cell(__u32 k, struct product *m)
{
	struct connection *c = m->c;
	__u32 at = m->to + k;
	__s64 z, g;

	k &= MAX_STATE - 1;
	z = sigmoid(c->buffer[at & BUFFER_MASK]);
	g = tanh_of(c->buffer[(at + m->columns) & BUFFER_MASK]);
	c->hidden[k] += mul(z, g - c->hidden[k]);
	return 0;
}

/* Features at `from`; the new hidden state is written over them, or behind them where a layer
 * follows, which reads both.
 */
__noinline int recurrent(struct connection *c, __u32 which, __u32 from, __u32 to)
{
	struct product m = {};
	__u32 size, width, gates, behind;

	if (!c)
		return 0;
	size = POLICY_OF(c)->state;
	width = POLICY_OF(c)->state_input;
	gates = POLICY_OF(c)->gates;
	behind = POLICY_OF(c)->post_hidden ? width : 0;
	if (size > MAX_STATE)
		size = MAX_STATE;
	for (int k = 0; k < MAX_STATE; k++) {
		if (k >= size || gates == 2)
			break;
		c->buffer[(from + width + k) & BUFFER_MASK] = c->hidden[k];
	}
	layer(c, which, from, to);
	m.c = c;
	m.columns = size;
	m.to = to;
	if (gates == 2)
		bpf_loop(size, min_gru_cell, &m, 0);
	else
		bpf_loop(size, cell, &m, 0);
	for (int k = 0; k < MAX_STATE; k++) {
		if (k >= size)
			break;
		c->buffer[(from + behind + k) & BUFFER_MASK] = c->hidden[k];
	}
	return 0;
}

/* What is seen, the previous action and the preference, normalised, to FIRST. */
__noinline int inputs(struct connection *c)
{
	struct policy *p;
	__u32 observed, actions, action;
	__s64 v;

	if (!c)
		return 0;
	p = POLICY_OF(c);
	observed = p->observed;
	actions = p->actions;
	for (int k = 0; k < MAX_INPUTS; k++)
		if (k >= observed)
			c->observation[k] = 0;
	action = c->action;
	if (!actions)
		c->observation[observed & (MAX_INPUTS - 1)] = c->answer;
	else if (action < MAX_ACTIONS)
		c->observation[(observed + action) & (MAX_INPUTS - 1)] = ONE;
	if (p->has_preference)
		c->observation[(observed + actions + !actions) & (MAX_INPUTS - 1)] = p->preference;
	for (int k = 0; k < MAX_INPUTS; k++) {
		/* Both are 0 beyond the inputs. */
		v = clip(c->observation[k] - p->mean[k], -64 * ONE, 64 * ONE);
		c->buffer[FIRST + k] = clip((v * p->inverse[k]) >> 20, -CLIP, CLIP);
	}
	return 0;
}

__noinline int likeliest(struct connection *c, __u32 at)
{
	__s64 best = -(1LL << 60), v, more, found = 0;
	__u32 n;

	if (!c)
		return 0;
	n = POLICY_OF(c)->actions;
	for (int k = 0; k < MAX_ACTIONS; k++) {
		if (k >= n)
			break;
		v = c->buffer[(at + k) & BUFFER_MASK];
		more = (best - v) >> 63; /* all ones where v is greater */
		barrier_var(more);
		best += (v - best) & more;
		found += (k - found) & more;
	}
	return found;
}

/* By the inverse CDF, with 32 bits of chance. */
__noinline int sampled(struct connection *c, __u32 at, __u32 best, __u32 draw)
{
	__s64 top, weight, total = 0, cut, found = 0, below;
	__u32 n;

	if (!c)
		return 0;
	n = POLICY_OF(c)->actions;
	top = c->buffer[(at + best) & BUFFER_MASK];
	for (int k = 0; k < MAX_ACTIONS; k++) {
		if (k >= n)
			break;
		weight = exp_of(c->buffer[(at + k) & BUFFER_MASK] - top);
		c->buffer[(at + MAX_ACTIONS + k) & BUFFER_MASK] = weight;
		total += weight;
	}
	cut = ((total >> 4) * draw) >> 28;
	total = 0;
	for (int k = 0; k < MAX_ACTIONS - 1; k++) {
		if (k + 1 >= n)
			break;
		total += c->buffer[(at + MAX_ACTIONS + k) & BUFFER_MASK];
		below = (total - cut - 1) >> 63; /* all ones where total <= cut */
		barrier_var(below);
		found += (k + 1 - found) & below;
	}
	return found;
}

/* The new pacing rate. */
__noinline __s64 scaled_rate(struct connection *c, __s64 answer)
{
	struct policy *p;
	__u64 factor;
	__s64 rate;

	if (!c)
		return 0;
	p = POLICY_OF(c);
	factor = ONE + mul(answer < 0 ? -answer : answer, p->scale);
	factor |= !factor;
	rate = answer < 0 ? (__s64)(((__u64)c->rate << SHIFT) / factor) : mul(c->rate, factor);
	return clip(rate, p->least_rate, p->greatest_rate);
}

/* What the guard lets a window grow to: so many packets more for each that was acknowledged, and
 * eight times what the path delivered lately in its least RTT, or 2 ms, and ten more.
 */
__noinline __s64 bounded(struct connection *c, __s64 old, __s64 new)
{
	__u64 rtt, most;

	if (!c)
		return 0;
	most = least(c->now.acked, MOST_PACKETS) * POLICY_OF(c)->growth;
	new = least(new, old + (__s64)(most << SHIFT));
	rtt = least(path_least(c), 4 * c->now.min_rtt);
	if (!c->lately || !rtt)
		return new;
	most = (__u64)c->lately * clip(rtt, LEAST_PATH_US, MOST_US) / 1000000;
	return least(new, (most << (SHIFT - 16 + 3)) + 10 * ONE);
}

/* What the guard leaves of a window, or of a rate; and what the application left unused is no reason
 * to grow.
 */
static __always_inline __s64 allowed(struct connection *c, __s64 old, __s64 new)
{
	__s64 unguarded = c->limited ? least(new, old) : new;

	if (POLICY_OF(c)->growth)
		new = greatest(bounded(c, old, new), POLICY_OF(c)->least_window);
	if (c->limited && new > old) {
		__sync_fetch_and_add(&stats.limited, 1);
		new = old;
	}
	if (c->guard.on == OUTSIDE)
		new = POLICY_OF(c)->actions ? c->guard.window : old;
	else if (c->guard.on)
		new = POLICY_OF(c)->actions ? least(new, c->guard.window) : old;
	if (new < unguarded || c->guard.on == OUTSIDE)
		__sync_fetch_and_add(&stats.lowered, 1);
	return new;
}

/* From c->observation to c->cwnd or c->rate. `draw` is of 32 bits, or a standard normal. */
__noinline int act(struct connection *c, __s64 draw)
{
	struct policy *p;
	__u32 at, number, action;
	__s64 v;

	if (!c)
		return 0;
	p = POLICY_OF(c);
	inputs(c);
	/* The network; `at` is where the features are. */
	number = p->dense;
	if (number > 0)
		layer(c, 0, FIRST, SECOND);
	if (number > 1)
		layer(c, 1, SECOND, FIRST);
	if (number > 2)
		layer(c, 2, FIRST, SECOND);
	if (number > 3)
		layer(c, 3, SECOND, FIRST);
	at = number & 1 ? SECOND : FIRST;
	if (p->state) {
		recurrent(c, number, at, SECOND - at);
		number++;
	}
	if (p->post_hidden) {
		layer(c, number, at, SECOND - at);
		at = SECOND - at;
		number++;
	}
	layer(c, number, at, SECOND - at);
	at = SECOND - at;
	/* A rate, */
	if (!p->actions) {
		v = c->buffer[at & BUFFER_MASK];
		if (p->sample)
			v += mul(p->deviation, draw);
		c->answer = clip(v, -CLIP, CLIP);
		c->action = 0;
		c->rate = allowed(c, c->rate, scaled_rate(c, c->answer));
		return 0;
	}
	/* or a window. */
	action = likeliest(c, at);
	if (p->sample)
		action = sampled(c, at, action, draw);
	action &= MAX_ACTIONS - 1;
	c->action = action;
	v = (least(c->cwnd, p->greatest_window) >> 8) * p->factor[action] >> (SHIFT - 8);
	v += p->offset[action];
	c->cwnd = allowed(c, c->cwnd, clip(v, p->least_window, p->greatest_window));
	return 0;
}
