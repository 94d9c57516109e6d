/* What the stub broker and the load generator share: frames read from files, big-endian numbers, a clock. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define EVENTS 512
#define SCRATCH 65536
#define NO_COPY 16384 /* of a body with more than this to come, bytes are thrown away inside the kernel */

/* One whole frame, its four bytes of size included. */
typedef struct {
    unsigned char *data;
    size_t size;
} Frame;

static inline void die(const char *what) {
    perror(what);
    exit(1);
}

static inline Frame read_frame(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) die(path);
    Frame frame = {NULL, (size_t)ftell(file)};
    rewind(file);
    frame.data = malloc(frame.size);
    if (!frame.data || fread(frame.data, 1, frame.size, file) != frame.size) die(path);
    fclose(file);
    return frame;
}

static inline uint32_t get32(const void *from) {
    uint32_t value;
    memcpy(&value, from, 4);
    return ntohl(value);
}

static inline uint16_t get16(const void *from) {
    uint16_t value;
    memcpy(&value, from, 2);
    return ntohs(value);
}

static inline void put32(void *to, uint32_t value) {
    value = htonl(value);
    memcpy(to, &value, 4);
}

static inline int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static inline struct sockaddr_in loopback(const char *port) {
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(atoi(port)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

/* Wait for output too, or for input only; `writing` remembers which. */
static inline void want_output(int poll, int fd, void *self, int *writing, int wanted) {
    if (*writing == wanted) return;
    struct epoll_event event = {.events = EPOLLIN | (wanted ? EPOLLOUT : 0), .data.ptr = self};
    epoll_ctl(poll, EPOLL_CTL_MOD, fd, &event);
    *writing = wanted;
}

/* Send `head`, which replaces the first `head_size` bytes of `frame`, and the rest, from byte `sent` on. */
static inline ssize_t send_frame(int fd, const void *head, size_t head_size, Frame frame, size_t sent) {
    struct iovec parts[2];
    int count = 0;
    if (sent < head_size) {
        parts[count++] = (struct iovec){(char *)head + sent, head_size - sent};
        sent = head_size;
    }
    if (sent < frame.size) parts[count++] = (struct iovec){frame.data + sent, frame.size - sent};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
    return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}
