"""Columns of the simulator's arrays of N links, K flows each, F = N * K: int64 ns, or packets."""

FOREVER = 1 << 62  # a time that never comes, and a queue limit that is never reached

MAX_PACKETS = 2**31 - 2**26  # that a link may carry and a flow send: a flow's counts have 31 bits

DELAYED_ACK_NS = 40_000_000  # so long a receiver that delays ACKs holds one (as Linux at first)

# Link parameters and state, int64 [N, LINK_COLUMNS].
NOW = 0  # time reached
LIMIT = 1  # queue limit in packets, the one in service counted; FOREVER: infinite
LOSS_SEED = 2  # seed of the random loss
SEGMENTS = 3  # rows of the schedule in use, at least 1
IS_TRACE = 4  # 1: opportunities of a trace; 0: rates of the schedule
FREE = 5  # rate link: when the last accepted packet departs
SEGMENT = 6  # rate link: schedule row in which that departure stands; trace: row of the newest one
ACCEPTED = 7  # packets accepted into the queue so far
TRACE_START = 8  # trace: first element in the flat array of traces
TRACE_LENGTH = 9  # trace: opportunities in one period
TRACE_PERIOD = 10  # trace: period, ns
TRACE_SHIFT = 11  # trace: time within the trace at which the episode starts, ns
CURSOR = 12  # trace: count of opportunities that passed (times <= the newest arrival)
CURSOR_ROW = 13  # trace: row of the next opportunity
CURSOR_BASE = 14  # trace: time of that row's period
NEXT = 15  # trace: count of the next opportunity that no packet holds
NEXT_ROW = 16  # trace: its row
NEXT_BASE = 17  # trace: time of its period
QUEUE_RING_START = 18  # scheduled or live link: first element of its ring
STEP_OPEN = 19  # above 0 while a step is half done because a ring was full: 1 + windows filled
STEP_START = 20  # when the present step started
STEP_CURSOR = 21  # trace: opportunities that had passed when the step started
SERVICE = 22  # unchanging rate link: transmission time of a packet, ns
ACK_JITTER = 23  # scale of the time that an ACK waits, ns
ACK_TICK = 24  # ... and then for the next multiple of this, ns; 1: for none
DELAYED_ACKS = 25  # 1: the receiver acknowledges every second packet
SHAPES_ACKS = 26  # 1: any of the three
LIVE = 27  # 1: its queue is simulated event by event (`distrlcc.sim.live_queue`)
# ... of such a link:
AQM = 28  # DROPTAIL, CODEL or PIE
QUEUE_MASK = 29  # capacity of its ring - 1
QUEUE_HEAD = 30  # packets that left the queue
QUEUE_TAIL = 31  # packets that the queue took
HOP_HEAD = 32  # packets that left the hop before the queue
HOP_TAIL = 33  # packets that were sent
HOP_ARRIVAL = 34  # when the newest of them reaches the queue
HOP_JITTER = 35  # scale of the time that a packet is in the hop, ns
POLICER_RATE = 36  # bit/s; 0: no policer
POLICER_BURST = 37  # size of the bucket, 1e-9 bit
POLICER_TOKENS = 38  # in the bucket at the last arrival
POLICER_TIME = 39  # time of that arrival
MARK = 40  # packets above which a droptail marks; FOREVER: never
FLOWS = 41  # flows on the link; rows for others, up to K, are not looked at
LATE_SHARE = 42  # probability that a packet is late and overtaken, times 2**63; 0: none is
LATE_BY = 43  # by how much, ns
ACK_JITTER_KIND = 44  # UNIFORM, NORMAL, ...
HOP_JITTER_KIND = 45
LINK_COLUMNS = 46

DROPTAIL, CODEL, PIE = range(3)
UNIFORM, NORMAL, EXPONENTIAL, CORRELATED, BURSTS = range(5)

# One packet in a live link's ring, QUEUED elements of the flat array of rings.
Q_FLOW = 0
Q_SEND_TIME = 1
Q_ARRIVAL = 2  # at the queue
Q_DELIVERED_TIME = 3
Q_COUNTS = 4  # as R_COUNTS
Q_LOG = 5  # the packet's row in the log
Q_ECN = 6  # 0, CAPABLE or MARKED
QUEUED = 7

CAPABLE, MARKED = 1, 2  # of a packet: it may be marked (ECN), or it is

# Flow parameters and state, int64 [F, FLOW_COLUMNS].
SCHEME = 0
START = 1
STOP = 2
EXTRA_RTT = 3  # the flow's own share of the round trip, beside twice the link's delay
SENT = 4  # next sequence number
NEXT_ACK = 5  # SENT less what is in flight; without reordering all below is acknowledged or lost
DELIVERED = 6
DELIVERED_TIME = 7
HEAD = 8  # ring records read
TAIL = 9  # ring records written
LAST_ACK = 10  # ACK time of the newest record: ACKs of a flow never overtake
NEXT_SEND = 11  # paced flows: earliest next send
TIMER_START = 12  # when an ACK came last, or a packet left with none in flight
MIN_RTT = 13  # 0 before the first sample
LAST_RTT = 14
RING_START = 15  # first record in the ring arena
RING_MASK = 16  # capacity - 1
STARTED = 17
PENDING = 18  # packets still to send at NOW when the ring was full; else -1
FLOW_SEED = 19
# ... since the step began:
STEP_SENT = 20
STEP_ACKED = 21
STEP_LOST = 22
STEP_TIMEOUTS = 23
STEP_RTT_SUM = 24
STEP_RTT_MIN = 25
STEP_RTT_MAX = 26
# ... since the episode began:
DROPPED = 27  # by the queue
RANDOM_LOST = 28  # by the link
QUEUEING_SUM = 29  # queueing delay of the acknowledged packets, ns
# ... of its receiver, where the link shapes ACKs:
NEWEST = 30  # when an ACK of the newest packet that it got would come without any wait
EXPECTED = 31  # sequence number after that packet's
HELD = 32  # 1 + ring record of the packet that it has not acknowledged; 0: none
HELD_UNTIL = 33  # when it does so at the latest, as NEWEST counts
HELD_ACK = 34  # ACK time of that record until then
HELD_LOG = 35  # row of the log that has the packet
# ... of its size:
SIZE = 36  # packets after whose acknowledgement it is over; FOREVER: never
COMPLETED = 37  # when that was; 0: not yet
# ... of ECN:
ECN = 38  # CAPABLE if its packets may be marked and the link's queue marks, else 0
MARKS = 39  # packets whose ACKs said that they were marked
# ... of its timer (RFC 6298):
SRTT = 40  # smoothed RTT in eighths of a ns
RTTVAR = 41  # mean deviation in quarters of a ns
BACKOFF = 42  # timeouts since the last ACK
PROBE = 43  # next sequence number at the first of them
# ... where packets are reordered (`distrlcc.sim.reordering`):
LOW = 44  # sequence numbers below this are forgotten
LOWEST = 45  # lowest sequence number in flight, or the next
LARGEST = 46  # largest acknowledged sequence number; -1: none
LARGEST_RTT = 47  # its RTT
LATENESS = 48  # greatest lateness of a window of time; NEVER_LATE: nothing was late
LATE_BEFORE = 49  # the same of the window before
LATE_SINCE = 50  # when the window began
LOSS_TIME = 51  # when LOWEST is lost unless it is acknowledged
UNREPORTED = 52  # losses that the scheme does not know of yet
LARGEST_LOST = 53  # largest sequence number that was found lost
RECOVERY_FROM = 54  # the newest recovery is of losses from this sequence number on
RECOVERY_UNTIL = 55  # ... and the next one of a loss from this one on
RECOVERY_LOST = 56  # ... and so many of its losses did not come after all
BEGINS = 57  # 1: the scheme does not know of it yet
LARGEST_TOLD = 58  # of the losses that the scheme knows of
STEP_SPURIOUS = 59  # since the step began: packets acknowledged that had been found lost
LATE_HEAD = 60  # ACKs read of those that are late
LATE_TAIL = 61  # ACKs written
FLOW_COLUMNS = 62

# One ring record, int64 [RECORD]: a packet on its way that will be acknowledged.
R_ACK_TIME = 0
R_SEND_TIME = 1
R_DELIVERED_TIME = 2
R_COUNTS = 3  # sequence number << 32 | delivered count when sent
R_WAIT = 4  # queueing delay; its complement (~, so below 0) if the packet was marked
RECORD = 5

# Steps' results per link, float64 [N, LINK_RESULTS].
CAPACITY = 0  # packets that the link could carry in the step
USED = 1  # packets' worth of it that was used
QUEUE = 2  # packets in the queue at the step's end, the one in service counted in part
BEST_CWND = 3  # window that fills the link without a standing queue, from now on
BASE_RTT = 4  # propagation and transmission at the step's end, s (link's own, without EXTRA_RTT)
TOTAL_USED = 5  # packets' worth that was used since the episode's start
TOTAL_CAPACITY = 6  # the same of what it could carry, behind a policer alone
LINK_RESULTS = 7

HISTOGRAM_BINS = 2112  # of delays, up to 37 hours: bin b starts at 100 us * (1.01**b - 1)
