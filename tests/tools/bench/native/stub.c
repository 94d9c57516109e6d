/* A broker that answers at once: `stub PORT FOLDER`.
 *
 * The answer to a request of api K, version V is FOLDER/K-V.resp with the request's correlation id put in; where there
 * is no such file the connection is closed and stderr says why. Requests are framed, and otherwise not looked at. */
#include "frames.h"

#define HEADER 12 /* size, api key, api version, correlation id */
#define KEYS 128
#define VERSIONS 32
#define PENDING 64 /* answers that wait for a client that does not read; above it, its requests are not read either */

typedef struct {
    const Frame *frame;
    unsigned char head[8]; /* size, correlation id */
} Answer;

typedef struct {
    int fd, writing;
    unsigned char header[HEADER];
    size_t header_size, body_left, sent;
    Answer answers[PENDING];
    unsigned first, last;
} Conn;

static Frame frames[KEYS][VERSIONS];
static int poller;
static unsigned char scratch[SCRATCH];

static int full(const Conn *c) { return c->last - c->first == PENDING; }

static int answer(Conn *c) {
    unsigned key = get16(c->header + 4), version = get16(c->header + 6);
    if (key >= KEYS || version >= VERSIONS || !frames[key][version].size) {
        fprintf(stderr, "stub: no answer for api %u version %u\n", key, version);
        return -1;
    }
    Answer *a = &c->answers[c->last++ % PENDING];
    a->frame = &frames[key][version];
    memcpy(a->head, a->frame->data, 4);
    memcpy(a->head + 4, c->header + 8, 4);
    return 0;
}

static int flush(Conn *c) {
    while (c->first != c->last) {
        Answer *a = &c->answers[c->first % PENDING];
        ssize_t n = send_frame(c->fd, a->head, sizeof a->head, *a->frame, c->sent);
        if (n < 0 && errno != EAGAIN) return -1;
        if (n > 0) c->sent += n;
        if (c->sent < a->frame->size) break;
        c->sent = 0;
        c->first++;
    }
    want_output(poller, c->fd, c, &c->writing, c->first != c->last);
    return 0;
}

/* Take what was read; returns -1 where the connection has to end. */
static int feed(Conn *c, const unsigned char *at, size_t size) {
    while (size) {
        if (c->header_size < HEADER) {
            size_t part = HEADER - c->header_size < size ? HEADER - c->header_size : size;
            memcpy(c->header + c->header_size, at, part);
            c->header_size += part, at += part, size -= part;
            if (c->header_size < HEADER) return 0;
            c->body_left = get32(c->header) - 8;
        }
        size_t part = c->body_left < size ? c->body_left : size;
        c->body_left -= part, at += part, size -= part;
        if (c->body_left) return 0;
        c->header_size = 0;
        if (full(c) && (flush(c) || full(c))) return -1; /* more requests in one read than anything here sends */
        if (answer(c)) return -1;
    }
    return 0;
}

static int readable(Conn *c) {
    while (!full(c)) {
        size_t room = SCRATCH / 4;
        int discard = c->header_size == HEADER && c->body_left > NO_COPY;
        if (discard) room = c->body_left;
        ssize_t n = recv(c->fd, discard ? NULL : scratch, room, MSG_DONTWAIT | (discard ? MSG_TRUNC : 0));
        if (n < 0) return errno == EAGAIN ? 0 : -1;
        if (n == 0) return -1;
        if (discard) {
            c->body_left -= n;
            if (!c->body_left) {
                c->header_size = 0;
                if (answer(c)) return -1;
            }
        } else if (feed(c, scratch, n)) {
            return -1;
        }
        if (flush(c)) return -1;
        if ((size_t)n < room) return 0;
    }
    return 0;
}

static void accept_all(int listener) {
    int on = 1;
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        Conn *c = calloc(1, sizeof *c);
        c->fd = fd;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
    }
}

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "usage: stub PORT FOLDER\n"), 2;
    for (int key = 0; key < KEYS; key++)
        for (int version = 0; version < VERSIONS; version++) {
            char path[4096];
            snprintf(path, sizeof path, "%s/%d-%d.resp", argv[2], key, version);
            if (!access(path, R_OK)) frames[key][version] = read_frame(path);
        }
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    struct sockaddr_in address = loopback(argv[1]);
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 4096)) die("stub: listen");
    poller = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN}, events[EVENTS];
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int count = epoll_wait(poller, events, EVENTS, -1);
        for (int i = 0; i < count; i++) {
            Conn *c = events[i].data.ptr;
            if (!c) {
                accept_all(listener);
                continue;
            }
            int ended = events[i].events & EPOLLOUT ? flush(c) : 0;
            if (!ended && events[i].events & ~EPOLLOUT) ended = readable(c);
            if (ended) {
                close(c->fd);
                free(c);
            }
        }
    }
}
