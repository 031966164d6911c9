/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What a step counts, and connections that a user decides for, who sees these counts. */
#define PATIENCE_NS 500000000

/* Begins a step's counts. */
static __always_inline void count_anew(struct interval *now)
{
	now->sent = now->acked = now->lost = 0;
	now->rtt_sum = now->rtt_count = now->rtt_min = now->rtt_max = 0;
	now->delay = now->delivery_rate = now->send_rate = 0;
}

/* Indigo's averages: each packet moves them by an eighth, from 0 in each step. */
static __always_inline __u64 eighths(__u64 old, __u64 sample, __u64 packets, bool fresh)
{
	packets = fresh || packets > 8 ? 8 : packets;
	return old + (((__s64)(sample - old) * (__s64)packets) >> 3);
}

/* The RTT of the oldest packet that was acknowledged, which TCP has smoothed; it tells the newest's. */
static __always_inline long oldest_rtt(struct connection *c, struct tcp_sock *tp, long newest)
{
	long oldest = (long)tp->srtt_us - c->srtt + (c->srtt >> 3);

	return c->srtt && oldest > newest ? oldest : newest;
}

/* Counts an acknowledgement into the step that has begun. */
static __always_inline void count(struct connection *c, struct tcp_sock *tp,
				  const struct rate_sample *rs, struct acked *a)
{
	__u32 space = POLICY_OF(c)->observation;
	struct interval *now = &c->now;
	bool fresh = !now->acked;
	long rtt = rs->rtt_us, flight = rs->interval_us, oldest = oldest_rtt(c, tp, rtt);
	__u64 sample;

	now->acked += a->acked;
	now->lost += a->lost;
	now->sent += (__u32)(tp->data_segs_out - c->sent);
	c->sent = tp->data_segs_out;
	c->srtt = tp->srtt_us;
	c->limited = a->limited;
	/* A delayed ACK's wait is not the path's: taken for a queue, it would hold a window of 2. What
	 * repairs a loss is timed by stamps of whole ms, and may look faster than the path.
	 */
	if (rtt > 0 && (__u64)rtt % 1000 && !(rs->is_ack_delayed && now->min_rtt)) {
		a->rtt_sum = rtt + oldest;
		a->rtt_count = 2;
		a->rtt_least = rtt;
		now->rtt_sum += rtt + oldest;
		now->rtt_count += 2;
		now->rtt_last = rtt;
		now->rtt_min = least_of(now->rtt_min, rtt);
		now->rtt_max = greatest(now->rtt_max, oldest);
		now->min_rtt = least_of(now->min_rtt, rtt);
	}
	if ((space != INDIGO && space != INDIGO_MIN_RTT) || !now->rtt_last || !a->acked)
		return;
	now->delay = eighths(now->delay, (now->rtt_last - now->min_rtt) << 16, a->acked, fresh);
	if (rs->delivered > 0 && flight > 0) {
		sample = ((__u64)rs->delivered * SECOND_US << 16) / (flight > 1000 ? flight : 1000);
		now->delivery_rate = eighths(now->delivery_rate, sample, a->acked, fresh);
	}
	sample = now->rtt_last > 1000 ? now->rtt_last : 1000;
	sample = ((__u64)rs->prior_in_flight * SECOND_US << 16) / sample;
	now->send_rate = eighths(now->send_rate, sample, a->acked, fresh);
}

/* The place of a connection that follows; 0 where its user is gone, or it has none. */
static __always_inline struct place *place_of(struct sock *sk)
{
	__u32 number = sk->sk_mark - 1;

	if (number >= MAX_PLACES || (__s64)(bpf_ktime_get_ns() - control.beat) > PATIENCE_NS)
		return 0;
	return &places[number];
}

/* Takes what a place orders; its step may be another one now. */
static __always_inline void follow(struct connection *c, struct place *place)
{
	if (c->step != place->step)
		count_anew(&c->now);
	c->step = place->step;
	c->cwnd = place->cwnd;
	c->rate = place->rate;
}
