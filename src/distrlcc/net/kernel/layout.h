/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the program and its users share; distrlcc/policy/kernel_layout.py says the same. */
#define MAX_INPUTS 64
#define MAX_ACTIONS 16
#define MAX_LAYERS 6
#define MAX_STATE 128
#define MAX_COLUMNS 256
#define MAX_ROWS 256
#define MAX_WEIGHTS (1 << 16)
#define MAX_BIASES 1024
#define WEIGHT_SHIFT 20
#define CELL_GREATEST (1LL << 38)
#define MAX_PLACES 1024

enum {
	SCALE_FREE, SCALE_FREE_RECENT, SCALE_FREE_SPREAD, SCALE_FREE_NOISE,
	INDIGO, INDIGO_MIN_RTT, AURORA, GENET
};
enum { LINEAR, RELU, TANH };

struct layer {
	__u32 rows, columns, weights, bias, activation;
};

/* Numbers have 24 bits after the point (ONE), rates (packets/s) 16. */
struct policy {
	__u32 observation, observed, actions, has_preference, dense, state, state_input;
	__u32 sample, step_us, interval_q16, catch_up, gain_q8, guard_rounds, floor;
	__u32 crowd, follows; /* whether places say what to do, and the rest counts for nothing */
	__u32 growth, gates; /* for each packet acknowledged, 0: unguarded; an LSTM has 4, a minGRU 2 */
	__u32 post_hidden; /* width of a dense layer behind the recurrent one */
	__u32 noise_us; /* that it holds; 0: the guard takes over on no path outside */
	__s64 guard_loss, preference, first_window, least_window, greatest_window;
	__s64 first_rate, least_rate, greatest_rate, scale, deviation;
	__s64 mean[MAX_INPUTS], inverse[MAX_INPUTS]; /* the latter with 20 bits */
	__s64 factor[MAX_ACTIONS], offset[MAX_ACTIONS];
	struct layer layers[MAX_LAYERS]; /* dense ones, the recurrent one, one behind it, the head */
	__s64 biases[MAX_BIASES];
	__u32 weights[MAX_WEIGHTS + MAX_COLUMNS]; /* weight * 2^WEIGHT_SHIFT + 2^31 */
	__u64 none[6]; /* so that the size is no earlier layout's; a new layout needs another */
};

struct control {
	__u32 generation; /* slot generation & 1 is in use; 0: none */
	__u32 operations, policies, stats; /* for users: numbers of the maps */
	char name[16], label[64]; /* and names of the control and of the policy */
	__u64 beat; /* when the user of the places lived last, ns of the monotonic clock */
};

struct stats {
	__u64 sockets, released, fallbacks, acks, decisions, ns, max_ns, limited;
	__u64 lowered; /* decisions of which the guard left less */
	__u64 guard_entries, guard_us, busy, busy_us, busy_start;
	__u64 short_entries, noisy_entries, outside_us;
};

/* What was seen in a step: us and packets; Indigo's averages with 16 bits after the point. Timeouts
 * are those since the beginning.
 */
struct interval {
	__u64 duration, sent, acked, lost, rtt_sum, rtt_count, rtt_min, rtt_last, min_rtt, inflight;
	__u64 delay, delivery_rate, send_rate, rtt_max, timeouts;
};

/* Where a user sets the window and rate of the connection whose mark (SO_MARK) is the place's
 * number + 1, and sees what came of it in the step that the user counts.
 */
struct place {
	__s64 cwnd, rate; /* a rate of 0: none but what the window gives */
	__u32 step, seen_step;
	struct interval seen;
};

/* What one acknowledgement tells the guard: us and packets. */
struct acked {
	__u64 now, acked, lost, inflight;
	__u32 prior_delivered, delivered, state, limited;
	__u64 rtt_sum, rtt_count, rtt_least; /* 0: no samples */
};

/* `on` is 1 while CUBIC's rule bounds the window, OUTSIDE while it has it alone. */
#define OUTSIDE 2

struct guard {
	__u64 packets, lost, least, since, epoch, turn, begun; /* turn: ms */
	__s64 greatest, reno, window;
	__u32 round, reduced, bad, calm, entries, on;
	/* Where noise is looked for: the round, and what rounds of the window and the one before had
	 * least: their least RTT, mean RTT and spread.
	 */
	__u64 noise_acked, noise_sum, noise_count, noise_least, noise_begun, window_begun, quiet;
	__u64 lowest[3], before[3], lossy_until, no_room; /* us; until then a loss counts */
	__u32 noise_round, noisy, noisy_entries, slow;
};

struct connection {
	struct interval now;
	__u64 start, idle, age, window, least, least_before; /* us; 0: none yet */
	__u64 recent_window, recent_least, recent_least_before;
	__u64 calm_window, calm_least, calm_least_before; /* the latter two in 1/256 us, as is mean */
	__s64 delay, slow_delay, fast, slow, top, loss, quick, cwnd_fast, cwnd_slow, rtt;
	__s64 floor, quantile, spread, slow_spread, mean, wander, lately; /* lately: greatest fast rate */
	__s64 cwnd, rate, answer;
	__u32 generation, action, delivered, sent, lost, state, limited, step;
	__u32 heard, srtt; /* us; srtt eight times */
	struct guard guard;
	__s64 observation[MAX_INPUTS], hidden[MAX_STATE], cell[MAX_STATE];
	__s64 buffer[2 * MAX_ROWS + MAX_COLUMNS];
};

struct trial {
	__u32 mode, unused;
	__s64 draw;
	struct acked ack;
	struct connection connection;
};
