"""A scheme: grow while the RTT is near its least, shrink on queues and losses.

distrlcc evaluate --against examples/plugins/scheme.py:near,cubic --suite random
"""

from distrlcc.control.state import CWND, FIRST_FREE, Scheme

LEAST, RECOVER = FIRST_FREE, FIRST_FREE + 1  # least RTT, ns; first packet after a reduction


def initialise(s, now, seed):
    s[LEAST] = 1e18


def on_ack(s, now, rtt, seq, sent, lost, inflight, delivered, prior_delivered, rate, marked):
    s[LEAST] = min(s[LEAST], rtt)
    if (lost + marked > 0 or rtt > 2.0 * s[LEAST]) and seq >= s[RECOVER]:
        s[CWND] = max(0.8 * s[CWND], 2.0)
        s[RECOVER] = sent
    elif rtt < 1.25 * s[LEAST]:
        s[CWND] += 0.25


def on_timeout(s, sent):
    s[CWND] = 1.0
    s[RECOVER] = sent


near = Scheme(initialise, on_ack, on_timeout)
