/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* A distrlcc policy as TCP congestion control. One program for every policy, which is data. */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "layout.h"

char _license[] SEC("license") = "Dual BSD/GPL";

/* Set before loading where cong_control takes (sk, rs), as before 6.10. */
const volatile __u32 form SEC(".rodata.form") = 0;

struct policy policies[2] SEC(".data.policies");
struct control control SEC(".data.control");
struct stats stats SEC(".data.stats");
struct trial trial_data SEC(".data.trial");
struct place places[MAX_PLACES] SEC(".data.places");

#define POLICY_OF(c) (&policies[(c)->generation & 1])

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct connection);
} connections SEC(".maps");

#include "fixed.bpf.h"
#include "observe.bpf.h"
#include "network.bpf.h"
#include "guard.bpf.h"

#define tcp_sk(sk) ((struct tcp_sock *)(sk))
#define NEVER 0x7fffffff
#define MOST_STRETCH 16
#define SECOND_US 1000000

#include "count.bpf.h"

/* Chance for one decision: 32 bits, or nearly a standard normal, the sum of twelve uniforms. */
__noinline __s64 drawn(struct connection *c)
{
	__s64 sum = 0;
	__u32 bits;

	if (!c)
		return 0;
	if (POLICY_OF(c)->actions)
		return bpf_get_prandom_u32();
	for (int k = 0; k < 6; k++) {
		bits = bpf_get_prandom_u32();
		sum += (bits & 65535) + (bits >> 16);
	}
	return (sum - 6 * 65535) << 8;
}

/* Observes c->now, acts, and begins the next step's counts. */
__noinline int step(struct connection *c)
{
	if (!c)
		return 0;
	observe(c);
	act(c, drawn(c));
	count_anew(&c->now);
	return 0;
}

/* Begins without a past under the policy in use, on nothing seen. */
__noinline int begin(struct connection *c, __u32 generation)
{
	struct policy *p;
	__u64 begun;

	if (!c)
		return 0;
	/* Features and recurrent state. */
	c->idle = c->age = c->window = c->least = c->least_before = 0;
	c->recent_window = c->recent_least = c->recent_least_before = 0;
	c->calm_window = c->calm_least = c->calm_least_before = 0;
	c->delay = c->slow_delay = c->fast = c->slow = c->top = c->loss = 0;
	c->quick = c->cwnd_fast = c->cwnd_slow = c->rtt = c->answer = 0;
	c->floor = c->quantile = c->spread = c->slow_spread = c->lately = 0;
	c->mean = c->wander = 0;
	for (int k = 0; k < MAX_STATE; k++)
		c->observation[k % MAX_INPUTS] = c->hidden[k] = c->cell[k] = 0;
	/* The first window or rate, where there is none yet. */
	c->generation = generation;
	p = POLICY_OF(c);
	c->rate = p->actions ? 0 : c->rate ? c->rate : p->first_rate;
	c->cwnd = p->actions && c->cwnd ? c->cwnd : p->first_window;
	c->action = MAX_ACTIONS;
	begun = bpf_ktime_get_ns();
	act(c, drawn(c));
	__sync_fetch_and_add(&stats.ns, bpf_ktime_get_ns() - begun);
	__sync_fetch_and_add(&stats.decisions, 1);
	return 0;
}

/* Another policy may need a rate where there was a window, or the other way round. */
static __always_inline void carry_over(struct connection *c, __u64 srtt)
{
	srtt |= !srtt;
	if (c->rate)
		c->cwnd = (__u64)c->rate * c->now.min_rtt / SECOND_US << 8;
	else
		c->rate = ((__u64)c->cwnd >> 8) * SECOND_US / srtt;
}

/* How long a step lasts, us: longer in proportion where more connections are busy than `crowd`. */
static __always_inline __u64 step_length(struct connection *c)
{
	struct policy *p = POLICY_OF(c);
	__u64 length = p->step_us, rtts = (c->now.min_rtt * p->interval_q16) >> 16;
	__u64 crowd = p->crowd, busy = stats.busy;

	length = rtts > length ? rtts : length;
	if (crowd && busy > crowd)
		length = length * (busy < crowd * MOST_STRETCH ? busy : crowd * MOST_STRETCH) / crowd;
	return length | !length;
}

/* Counts how many connections decide: the time of all steps, in a second of each. */
static __always_inline void count_busy(__u64 now, __u64 us)
{
	__u64 since = stats.busy_start;

	__sync_fetch_and_add(&stats.busy_us, us);
	if ((__s64)(now - since) < SECOND_US)
		return;
	if (__sync_val_compare_and_swap(&stats.busy_start, since, now) != since)
		return;
	/* After a pause longer than a second it is more than a second's. */
	stats.busy = stats.busy_us / (now - since);
	stats.busy_us = 0;
}

/* Closes the steps that ended before this acknowledgement: the first has what was counted, the
 * others nothing; the last takes what is left of the time.
 */
static __always_inline void close_steps(struct connection *c, __u64 now)
{
	__u64 length = step_length(c), passed = now - c->start, steps, begun, ns;
	__u32 n = POLICY_OF(c)->catch_up;

	if ((__s64)passed < (__s64)length)
		return;
	begun = bpf_ktime_get_ns();
	steps = passed / length;
	n = steps < n ? steps : n;
	c->start += steps * length;
	for (int k = 0; k < 16; k++) {
		if (k >= n)
			break;
		c->now.duration = (k + 1 == n ? steps - k : 1) * length;
		step(c);
	}
	ns = bpf_ktime_get_ns() - begun;
	__sync_fetch_and_add(&stats.decisions, n);
	__sync_fetch_and_add(&stats.ns, ns);
	if (ns > stats.max_ns)
		stats.max_ns = ns;
	count_busy(now, n * length);
}

/* Gives the socket its window and pacing rate. */
static __always_inline void apply(struct sock *sk, struct connection *c, __u64 slow_start)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct policy *p = POLICY_OF(c);
	__u64 cwnd = (__u64)c->cwnd >> SHIFT, srtt = tp->srtt_us >> 3, rate, floor = p->floor;
	__u64 gain = p->gain_q8, most = sk->sk_max_pacing_rate;

	srtt = srtt ? srtt : 1000;
	gain = c->guard.no_room ? least(gain, GENTLE) : gain;
	/* Without a rate TCP would wait for large bursts, and not fill the window. */
	rate = ((cwnd * tp->mss_cache * SECOND_US / srtt) * gain) >> 8;
	if (c->rate && !c->guard.on) {
		rate = ((__u64)c->rate * tp->mss_cache) >> 16;
		/* A follower's window may be paced as well. */
		srtt = 4 * ((__u64)c->rate * srtt >> 16) / SECOND_US;
		cwnd = p->follows && cwnd < srtt ? cwnd : srtt;
	}
	/* After a timeout all counts as lost: what is sent again starts slowly. */
	if (slow_start < cwnd)
		cwnd = slow_start;
	cwnd = cwnd < floor ? floor : cwnd;
	tp->snd_cwnd = cwnd > tp->snd_cwnd_clamp ? tp->snd_cwnd_clamp : cwnd;
	sk->sk_pacing_rate = rate < most ? rate : most;
}

static __always_inline void fall_back(struct sock *sk)
{
	char cubic[] = "cubic", reno[] = "reno";

	__sync_fetch_and_add(&stats.fallbacks, 1);
	/* CUBIC may be a module that is not loaded, which cannot be loaded from here. */
	if (bpf_setsockopt(sk, SOL_TCP, TCP_CONGESTION, cubic, sizeof(cubic)))
		bpf_setsockopt(sk, SOL_TCP, TCP_CONGESTION, reno, sizeof(reno));
}

SEC("struct_ops")
void BPF_PROG(start, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	__u32 generation = control.generation;
	bool follows = policies[generation & 1].follows;
	struct place *place = follows ? place_of(sk) : 0;
	struct connection *c = 0;

	if (generation && (place || !follows))
		c = bpf_sk_storage_get(&connections, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!c) {
		fall_back(sk);
		return;
	}
	__sync_fetch_and_add(&stats.sockets, 1);
	c->start = c->guard.begun = c->guard.noise_begun = c->guard.window_begun = tp->tcp_mstamp;
	c->delivered = c->guard.round = c->guard.noise_round = tp->delivered;
	c->lost = tp->lost;
	c->sent = tp->data_segs_out;
	c->srtt = tp->srtt_us;
	begin(c, generation);
	if (place)
		follow(c, place);
	tp->snd_ssthresh = NEVER;
	if (sk->sk_pacing_status == 0)
		sk->sk_pacing_status = PACING_NEEDED;
	apply(sk, c, NEVER);
}

SEC("struct_ops")
void BPF_PROG(release, struct sock *sk)
{
	struct connection *c = bpf_sk_storage_get(&connections, sk, 0, 0);

	if (!c)
		return;
	count_guarded(c, tcp_sk(sk)->tcp_mstamp);
	__sync_fetch_and_add(&stats.released, 1);
	bpf_sk_storage_delete(&connections, sk);
}

SEC("struct_ops")
int cong_control(__u64 *arguments)
{
	struct sock *sk = (void *)arguments[0];
	const struct rate_sample *rs;
	struct tcp_sock *tp = tcp_sk(sk);
	struct connection *c = bpf_sk_storage_get(&connections, sk, 0, 0);
	__u32 generation = control.generation;
	__u64 slow_start = NEVER;
	struct place *place = 0;
	struct acked a = {};

	/* The other form is dead code, as `form` does not change once the program is loaded. In
	 * assembly, as the compiler would make one load of both, which the verifier refuses.
	 */
	if (form)
		asm volatile("%0 = *(u64 *)(%1 + 8)" : "=r"(rs) : "r"(arguments));
	else
		asm volatile("%0 = *(u64 *)(%1 + 24)" : "=r"(rs) : "r"(arguments));
	if (!c)
		return 0;
	if (!generation || (policies[generation & 1].follows && !(place = place_of(sk)))) {
		fall_back(sk);
		return 0;
	}
	__sync_fetch_and_add(&stats.acks, 1);
	/* What ended before this acknowledgement, under the policy that is in use now. */
	if (c->generation != generation) {
		carry_over(c, tp->srtt_us >> 3);
		begin(c, generation);
	}
	a.now = tp->tcp_mstamp;
	c->now.inflight = rs->prior_in_flight; /* at the end of a step that ended before it */
	if (place)
		follow(c, place);
	else
		close_steps(c, a.now);
	/* The acknowledgement. */
	a.acked = (__u32)(tp->delivered - c->delivered);
	a.lost = (__u32)(tp->lost - c->lost);
	c->delivered = a.delivered = tp->delivered;
	c->lost = tp->lost;
	c->heard = a.now;
	a.inflight = tp->packets_out - tp->sacked_out - tp->lost_out + tp->retrans_out;
	a.prior_delivered = rs->prior_delivered;
	/* Linux counts the first window as limited, too, which was sent when 1 was delivered. */
	a.limited = rs->is_app_limited && (tp->app_limited || rs->prior_delivered > 1);
	a.state = c->state;
	count(c, tp, rs, &a);
	guard(c, &a);
	if (place) {
		place->seen = c->now;
		place->seen_step = c->step;
	}
	if (a.state == TCP_CA_Loss)
		slow_start = a.inflight + 1 + 2 * a.acked;
	apply(sk, c, slow_start);
	return 0;
}

SEC("struct_ops")
__u32 BPF_PROG(ssthresh, struct sock *sk)
{
	return NEVER;
}

/* Small bursts: the policy's window is small beside TSO's. */
SEC("struct_ops")
__u32 BPF_PROG(min_tso_segs, struct sock *sk)
{
	return 1;
}

SEC("struct_ops")
__u32 BPF_PROG(undo_cwnd, struct sock *sk)
{
	return tcp_sk(sk)->snd_cwnd;
}

SEC("struct_ops")
void BPF_PROG(set_state, struct sock *sk, __u8 state)
{
	struct connection *c = bpf_sk_storage_get(&connections, sk, 0, 0);

	if (!c)
		return;
	c->state = state;
	c->now.timeouts += state == TCP_CA_Loss;
}

SEC("struct_ops")
void BPF_PROG(cwnd_event, struct sock *sk, enum tcp_ca_event event)
{
	__u64 now = tcp_sk(sk)->tcp_mstamp, patience;
	struct connection *c;

	/* After idleness the step begins anew: nobody waited for an acknowledgement. A window that
	 * was acknowledged before the next packet's turn is no idleness.
	 */
	if (event != CA_EVENT_TX_START)
		return;
	c = bpf_sk_storage_get(&connections, sk, 0, 0);
	if (!c)
		return;
	patience = POLICY_OF(c)->step_us;
	if (c->rate) /* some packets' turns */
		patience += (4ULL * SECOND_US << 16) / (__u64)c->rate;
	if ((__u32)now - c->heard > patience)
		c->start = now;
}

SEC(".struct_ops")
struct tcp_congestion_ops distrlcc = {
	.flags = TCP_CONG_NON_RESTRICTED,
	.init = (void *)start,
	.release = (void *)release,
	.ssthresh = (void *)ssthresh,
	.cong_control = (void *)cong_control,
	.undo_cwnd = (void *)undo_cwnd,
	.min_tso_segs = (void *)min_tso_segs,
	.set_state = (void *)set_state,
	.cwnd_event = (void *)cwnd_event,
	.name = "distrlcc",
};

/* For tests, by BPF_PROG_TEST_RUN; it does not load unless it is asked for. */
enum { STEP, BEGIN, GUARD };

SEC("?tc")
int trial(struct __sk_buff *skb)
{
	struct connection *c = &trial_data.connection;

	if (trial_data.mode == GUARD)
		return guard(c, &trial_data.ack);
	if (trial_data.mode == STEP)
		observe(c);
	act(c, trial_data.draw);
	return 0;
}
