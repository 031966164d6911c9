/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The kernel's types as far as we read them. Names count, order and offsets do not: libbpf puts the
 * running kernel's offsets in (CO-RE).
 */
typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef _Bool bool;

enum bpf_map_type { BPF_MAP_TYPE_SK_STORAGE = 24 };
enum { BPF_F_NO_PREALLOC = 1, BPF_SK_STORAGE_GET_F_CREATE = 1 };
/* Macros in the kernel, which BTF does not have. */
enum { SOL_TCP = 6, TCP_CONGESTION = 13, TCP_CONG_NON_RESTRICTED = 1, PACING_NEEDED = 1 };
enum tcp_ca_event { CA_EVENT_TX_START };
enum tcp_ca_state { TCP_CA_Open, TCP_CA_Disorder, TCP_CA_CWR, TCP_CA_Recovery, TCP_CA_Loss };

#define __core __attribute__((preserve_access_index))

struct sock {
	__u32 sk_pacing_status, sk_mark;
	unsigned long sk_pacing_rate, sk_max_pacing_rate;
} __core;

struct tcp_sock {
	__u64 tcp_mstamp;
	__u32 retrans_out, lost_out, sacked_out, packets_out, lost, delivered, data_segs_out;
	__u32 srtt_us, mss_cache, snd_cwnd, snd_cwnd_clamp, snd_ssthresh, app_limited;
} __core;

struct rate_sample {
	long rtt_us, interval_us;
	__s32 delivered;
	__u32 prior_in_flight, prior_delivered;
	bool is_ack_delayed, is_app_limited;
} __core;

struct tcp_congestion_ops {
	__u32 (*ssthresh)(struct sock *);
	void (*set_state)(struct sock *, __u8);
	void (*cwnd_event)(struct sock *, enum tcp_ca_event);
	__u32 (*min_tso_segs)(struct sock *);
	void (*cong_control)(struct sock *, __u32, int, const struct rate_sample *);
	__u32 (*undo_cwnd)(struct sock *);
	char name[16];
	__u32 flags;
	void (*init)(struct sock *);
	void (*release)(struct sock *);
};

struct __sk_buff {
	__u32 len;
};
