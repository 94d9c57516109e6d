/* A load generator: `load MODE PORT REQUEST [name=number…]`, REQUEST being a file with one frame.
 *
 *   requests  conns, depth, warm, secs, rate   each connection has `depth` requests in flight, or, where there is a
 *                                              rate, requests are due at even intervals, whatever became of the last
 *   storm     conns, secs                      connect, one request, its answer, close; `conns` at the same time
 *
 * The last line of stdout is one JSON object. Latency is from when a request was due to the end of its answer. Rates and
 * latencies are of `secs` seconds after the first `warm`; `requests` and `bytes` are of the whole run, so that they can
 * be set against CPU read before and after it. */
#include "frames.h"
#include <fcntl.h>
#include <sys/timerfd.h>

#define HEAD 12 /* of a request: size, api, correlation id */
#define DEPTH 64
#define PATIENCE 20 /* seconds for an answer, on a machine that others use */

typedef struct {
    int fd, writing, connected;
    uint32_t written, queued, answered; /* requests so far: sent whole, to be sent, answered */
    size_t sent;                        /* bytes of the request that is being sent */
    unsigned char header[8];
    size_t header_size, body_left;
    int64_t due[DEPTH];
} Conn;

static Frame request;
static struct sockaddr_in address;
static int poller, measuring;
static double conns = 32, depth = 1, warm = 0.3, secs = 2, rate = 0;
static unsigned char scratch[SCRATCH];
static uint64_t answers, bytes, errors, measured, measured_bytes;
static uint32_t *latencies; /* µs / 10 */
static size_t latency_room;

static void count_bytes(size_t size) {
    bytes += size;
    if (measuring) measured_bytes += size;
}

static void count_answer(Conn *c) {
    int64_t took = now_ns() - c->due[c->answered++ % DEPTH];
    answers++;
    if (!measuring) return;
    if (measured == latency_room) {
        latency_room = latency_room ? 2 * latency_room : 1 << 18;
        latencies = realloc(latencies, latency_room * sizeof *latencies);
        if (!latencies) die("load: latencies");
    }
    latencies[measured++] = took / 100;
}

static uint32_t in_flight(const Conn *c) { return c->queued - c->answered; }

static void ask(Conn *c, int64_t due) { c->due[c->queued++ % DEPTH] = due; }

static int dial(Conn *c, int blocking) {
    int on = 1;
    memset(c, 0, sizeof *c);
    c->fd = socket(AF_INET, SOCK_STREAM | (blocking ? 0 : SOCK_NONBLOCK), 0);
    if (c->fd < 0) return -1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(c->fd, (void *)&address, sizeof address) && errno != EINPROGRESS) {
        close(c->fd);
        c->fd = -1;
        return -1;
    }
    c->connected = blocking;
    c->writing = !blocking;
    struct epoll_event event = {.events = EPOLLIN | (c->writing ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event);
    return 0;
}

static void hang_up(Conn *c) {
    close(c->fd);
    c->fd = -1;
}

static int writable(Conn *c) {
    while (c->written != c->queued) {
        unsigned char head[HEAD];
        memcpy(head, request.data, HEAD);
        put32(head + 8, c->written);
        ssize_t n = send_frame(c->fd, head, HEAD, request, c->sent);
        if (n < 0 && errno != EAGAIN) return -1;
        if (n > 0) {
            c->sent += n;
            count_bytes(n);
        }
        if (c->sent < request.size) break;
        c->sent = 0;
        c->written++;
    }
    want_output(poller, c->fd, c, &c->writing, c->written != c->queued);
    return 0;
}

static int feed(Conn *c, const unsigned char *at, size_t size) {
    while (size) {
        if (c->header_size < sizeof c->header) {
            size_t part = sizeof c->header - c->header_size < size ? sizeof c->header - c->header_size : size;
            memcpy(c->header + c->header_size, at, part);
            c->header_size += part, at += part, size -= part;
            if (c->header_size < sizeof c->header) return 0;
            c->body_left = get32(c->header) - 4;
            if (get32(c->header + 4) != c->answered) return -1; /* not the answer that is due */
        }
        size_t part = c->body_left < size ? c->body_left : size;
        c->body_left -= part, at += part, size -= part;
        if (c->body_left) return 0;
        c->header_size = 0;
        count_answer(c);
    }
    return 0;
}

static int readable(Conn *c) {
    for (int turn = 0; turn < 8; turn++) {
        size_t room = SCRATCH / 4;
        int discard = c->header_size == sizeof c->header && c->body_left > NO_COPY;
        if (discard) room = c->body_left;
        ssize_t n = recv(c->fd, discard ? NULL : scratch, room, MSG_DONTWAIT | (discard ? MSG_TRUNC : 0));
        if (n < 0) return errno == EAGAIN ? 0 : -1;
        if (n == 0) return -1;
        count_bytes(n);
        if (discard) {
            c->body_left -= n;
            if (!c->body_left) {
                c->header_size = 0;
                count_answer(c);
            }
        } else if (feed(c, scratch, n)) {
            return -1;
        }
        if ((size_t)n < room) return 0;
    }
    return 0;
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static double quantile(double q) { return measured ? latencies[(size_t)(q * (measured - 1))] / 10.0 : 0; }

static void report(double seconds) {
    qsort(latencies, measured, sizeof *latencies, by_size);
    printf("{\"requests\": %lu, \"bytes\": %lu, \"errors\": %lu, \"seconds\": %.4f, \"per_s\": %.1f, \"mb_s\": %.2f, "
           "\"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f}\n",
           answers, bytes, errors, seconds, measured / seconds, measured_bytes / seconds / 1e6, quantile(.5),
           quantile(.99), quantile(.999));
}

/* Issue what has become due by now, each on the next connection in turn that has room. Returns the next to try. */
static int issue_due(Conn *all, int turn, int64_t start, int64_t end, uint64_t *issued) {
    int count = conns, tried = 0;
    int64_t now = now_ns();
    if (now > end) now = end;
    while (start + (int64_t)(*issued * 1e9 / rate) < now && tried < count) {
        Conn *c = &all[turn];
        turn = (turn + 1) % count;
        if (c->fd < 0 || in_flight(c) >= depth) {
            tried++;
            continue;
        }
        tried = 0;
        ask(c, start + (int64_t)(*issued * 1e9 / rate));
        ++*issued;
        if (writable(c)) {
            hang_up(c);
            errors++;
        }
    }
    return turn;
}

static void run_requests(Conn *all) {
    struct epoll_event events[EVENTS];
    int count = conns, turn = 0, ticker = -1;
    for (int i = 0; i < count; i++)
        if (dial(&all[i], 1)) errors++;
    int64_t start = now_ns(), begin = start + (int64_t)(warm * 1e9), end = begin + (int64_t)(secs * 1e9);
    uint64_t issued = 0;
    if (rate > 0) {
        ticker = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
        struct timespec step = {0, (long)(1e9 / rate)};
        struct itimerspec timer = {step, step};
        timerfd_settime(ticker, 0, &timer, NULL);
        struct epoll_event event = {.events = EPOLLIN};
        epoll_ctl(poller, EPOLL_CTL_ADD, ticker, &event);
    } else {
        for (int i = 0; i < count; i++) {
            if (all[i].fd < 0) continue;
            for (int k = 0; k < depth; k++) ask(&all[i], start);
            if (writable(&all[i])) hang_up(&all[i]), errors++;
        }
    }
    int64_t measured_from = 0, measured_to = 0;
    for (;;) {
        int64_t now = now_ns();
        if (!measured_from && now >= begin) {
            measured_from = now, measuring = 1;
            end = now + (int64_t)(secs * 1e9); /* as long even where this process was kept waiting */
        }
        if (!measured_to && now >= end) measured_to = now, measuring = 0;
        if (measured_to) { /* ask no more, and let what is open be answered */
            int open = 0;
            for (int i = 0; i < count; i++) open += all[i].fd >= 0 && in_flight(&all[i]);
            if (!open) break;
            if (now > end + PATIENCE * 1000000000LL) {
                errors += open;
                break;
            }
        }
        int ready = epoll_wait(poller, events, EVENTS, 20);
        for (int i = 0; i < ready; i++) {
            Conn *c = events[i].data.ptr;
            if (!c) {
                uint64_t ticks;
                if (read(ticker, &ticks, sizeof ticks) > 0) turn = issue_due(all, turn, start, end, &issued);
                continue;
            }
            if (c->fd < 0) continue;
            int ended = events[i].events & ~EPOLLOUT ? readable(c) : 0;
            if (!ended && rate <= 0 && !measured_to) {
                int64_t due = now_ns();
                while (in_flight(c) < depth) ask(c, due);
            }
            if (!ended && c->written != c->queued) ended = writable(c);
            if (ended) {
                hang_up(c);
                errors++;
            }
        }
    }
    report((measured_to - measured_from) / 1e9);
}

static void run_storm(Conn *all) {
    struct epoll_event events[EVENTS];
    int64_t start = now_ns(), end = start + (int64_t)(secs * 1e9);
    int live = 0;
    measuring = 1;
    for (int i = 0; i < conns; i++) {
        if (dial(&all[i], 0)) errors++;
        else ask(&all[i], now_ns()), live++;
    }
    while (live) {
        int ready = epoll_wait(poller, events, EVENTS, PATIENCE * 1000);
        if (ready == 0) {
            errors += live;
            break;
        }
        for (int i = 0; i < ready; i++) {
            Conn *c = events[i].data.ptr;
            if (c->fd < 0) continue;
            int ended = 0;
            if (!c->connected && events[i].events & EPOLLOUT) {
                c->connected = 1;
                ended = writable(c);
            }
            if (!ended && events[i].events & ~EPOLLOUT) ended = readable(c);
            if (!ended && !c->answered) continue;
            errors += !c->answered;
            hang_up(c);
            live--;
            if (now_ns() >= end) continue;
            if (dial(c, 0)) errors++;
            else ask(c, now_ns()), live++;
        }
    }
    report((now_ns() - start) / 1e9);
}

int main(int argc, char **argv) {
    if (argc < 4) return fprintf(stderr, "usage: load requests|storm PORT REQUEST [name=number...]\n"), 2;
    struct { const char *name; double *value; } options[] = {
        {"conns", &conns}, {"depth", &depth}, {"warm", &warm}, {"secs", &secs}, {"rate", &rate}};
    for (int i = 4; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        size_t known = 0, total = sizeof options / sizeof *options;
        for (; value && known < total; known++)
            if (strlen(options[known].name) == (size_t)(value - argv[i]) &&
                !strncmp(options[known].name, argv[i], value - argv[i])) break;
        if (!value || known == total) return fprintf(stderr, "load: no option %s\n", argv[i]), 2;
        *options[known].value = atof(value + 1);
    }
    if (depth > DEPTH) depth = DEPTH;
    address = loopback(argv[2]);
    request = read_frame(argv[3]);
    poller = epoll_create1(0);
    Conn *all = calloc(conns, sizeof *all);
    if (!strcmp(argv[1], "requests")) run_requests(all);
    else if (!strcmp(argv[1], "storm")) run_storm(all);
    else return fprintf(stderr, "load: no mode %s\n", argv[1]), 2;
    return 0;
}
