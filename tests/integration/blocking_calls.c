/* Preloaded: appends to the file $BLOCKING_CALLS each call of a main thread that may wait for anything but its sockets:
   its process, monotonic seconds, its name, and a path or a name where there is one.

   A call that may wait: one on a path, on a file, on a descriptor without O_NONBLOCK, a look-up of a name, a process
   started or waited for, a pause, a join. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int notes = -1;

__attribute__((constructor)) static void attach(void) {
    notes = syscall(SYS_openat, AT_FDCWD, getenv("BLOCKING_CALLS"), O_WRONLY | O_APPEND | O_CLOEXEC);
    if (notes < 0) abort();
}

static int watched(void) { return notes >= 0 && syscall(SYS_gettid) == syscall(SYS_getpid); }

static void note(const char *call, const char *subject) {
    if (!watched()) return;
    int kept = errno;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    char line[4400];
    int pid = syscall(SYS_getpid), size = snprintf(line, sizeof line, "%d %ld.%09ld %s %s\n", pid, (long)now.tv_sec,
                                                   now.tv_nsec, call, subject ? subject : "");
    syscall(SYS_write, notes, line, size);
    errno = kept;
}

static void note_descriptor(const char *call, int fd, int always) {
    if (!watched()) return;
    int kept = errno;
    struct stat found;
    char link[32], subject[224] = "";
    if (!syscall(SYS_fstat, fd, &found)) {
        int file = S_ISREG(found.st_mode) || S_ISDIR(found.st_mode) || S_ISBLK(found.st_mode);
        if (always ? file : file || !(syscall(SYS_fcntl, fd, F_GETFL) & O_NONBLOCK)) {
            snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
            syscall(SYS_readlinkat, AT_FDCWD, link, subject, sizeof subject - 1);
            note(call, subject);
        }
    }
    errno = kept;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FORWARD(name, before, ...) \
    { static __typeof__(&name) next; if (!next) next = NEXT(name); before; return next(__VA_ARGS__); }
#define PATH(name, path) note(name, path)
#define ON(name, fd) note_descriptor(name, fd, 0)
#define ON_FILE(name, fd) note_descriptor(name, fd, 1)

/* Paths. */
#define MODE mode_t mode = 0; if (flags & (O_CREAT | __O_TMPFILE)) { va_list rest; va_start(rest, flags); \
    mode = va_arg(rest, int); va_end(rest); }
int open(const char *path, int flags, ...) { MODE FORWARD(open, PATH("open", path), path, flags, mode) }
int open64(const char *path, int flags, ...) { MODE FORWARD(open64, PATH("open", path), path, flags, mode) }
int openat(int at, const char *path, int flags, ...) { MODE FORWARD(openat, PATH("open", path), at, path, flags, mode) }
int openat64(int at, const char *path, int flags, ...) { MODE FORWARD(openat64, PATH("open", path), at, path, flags, mode) }
FILE *fopen(const char *path, const char *how) FORWARD(fopen, PATH("fopen", path), path, how)
FILE *fopen64(const char *path, const char *how) FORWARD(fopen64, PATH("fopen", path), path, how)
DIR *opendir(const char *path) FORWARD(opendir, PATH("opendir", path), path)
DIR *fdopendir(int fd) FORWARD(fdopendir, ON_FILE("fdopendir", fd), fd)
int stat(const char *restrict path, struct stat *restrict to) FORWARD(stat, PATH("stat", path), path, to)
int stat64(const char *restrict path, struct stat64 *restrict to) FORWARD(stat64, PATH("stat", path), path, to)
int lstat(const char *restrict path, struct stat *restrict to) FORWARD(lstat, PATH("lstat", path), path, to)
int lstat64(const char *restrict path, struct stat64 *restrict to) FORWARD(lstat64, PATH("lstat", path), path, to)
int fstatat(int at, const char *restrict path, struct stat *restrict to, int flags)
    FORWARD(fstatat, PATH("fstatat", path), at, path, to, flags)
int fstatat64(int at, const char *restrict path, struct stat64 *restrict to, int flags)
    FORWARD(fstatat64, PATH("fstatat", path), at, path, to, flags)
int statx(int at, const char *restrict path, int flags, unsigned mask, struct statx *restrict to)
    FORWARD(statx, PATH("statx", path), at, path, flags, mask, to)
int access(const char *path, int mode) FORWARD(access, PATH("access", path), path, mode)
ssize_t readlink(const char *restrict path, char *restrict to, size_t size)
    FORWARD(readlink, PATH("readlink", path), path, to, size)
int mkdir(const char *path, mode_t mode) FORWARD(mkdir, PATH("mkdir", path), path, mode)
int unlink(const char *path) FORWARD(unlink, PATH("unlink", path), path)
int rename(const char *from, const char *to) FORWARD(rename, PATH("rename", from), from, to)

/* Descriptors. */
ssize_t read(int fd, void *to, size_t size) FORWARD(read, ON("read", fd), fd, to, size)
ssize_t pread(int fd, void *to, size_t size, off_t at) FORWARD(pread, ON("pread", fd), fd, to, size, at)
ssize_t pread64(int fd, void *to, size_t size, off64_t at) FORWARD(pread64, ON("pread", fd), fd, to, size, at)
ssize_t readv(int fd, const struct iovec *to, int count) FORWARD(readv, ON("readv", fd), fd, to, count)
ssize_t write(int fd, const void *from, size_t size) FORWARD(write, ON("write", fd), fd, from, size)
ssize_t pwrite(int fd, const void *from, size_t size, off_t at) FORWARD(pwrite, ON("pwrite", fd), fd, from, size, at)
ssize_t pwrite64(int fd, const void *from, size_t size, off64_t at)
    FORWARD(pwrite64, ON("pwrite", fd), fd, from, size, at)
ssize_t writev(int fd, const struct iovec *from, int count) FORWARD(writev, ON("writev", fd), fd, from, count)
int fsync(int fd) FORWARD(fsync, ON_FILE("fsync", fd), fd)
int fdatasync(int fd) FORWARD(fdatasync, ON_FILE("fdatasync", fd), fd)
int ftruncate(int fd, off_t size) FORWARD(ftruncate, ON_FILE("ftruncate", fd), fd, size)
int ftruncate64(int fd, off64_t size) FORWARD(ftruncate64, ON_FILE("ftruncate", fd), fd, size)
int fstat(int fd, struct stat *to) FORWARD(fstat, ON_FILE("fstat", fd), fd, to)
int fstat64(int fd, struct stat64 *to) FORWARD(fstat64, ON_FILE("fstat", fd), fd, to)
int flock(int fd, int how) FORWARD(flock, ON_FILE("flock", fd), fd, how)
int close(int fd) FORWARD(close, ON_FILE("close", fd), fd)
int msync(void *from, size_t size, int flags) FORWARD(msync, note("msync", ""), from, size, flags)

/* Sockets: no call waits on one that is non-blocking, nor does a datagram socket's connect. */
static int datagram(int fd) {
    int type = 0;
    socklen_t size = sizeof type;
    return !getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) && type == SOCK_DGRAM;
}
int connect(int fd, const struct sockaddr *to, socklen_t size)
    FORWARD(connect, if (!datagram(fd)) ON("connect", fd), fd, to, size)
int accept(int fd, struct sockaddr *restrict from, socklen_t *restrict size)
    FORWARD(accept, ON("accept", fd), fd, from, size)
int accept4(int fd, struct sockaddr *restrict from, socklen_t *restrict size, int flags)
    FORWARD(accept4, ON("accept", fd), fd, from, size, flags)
#define ON_UNLESS_ASKED(name, fd) if (!(flags & MSG_DONTWAIT)) ON(name, fd)
ssize_t recv(int fd, void *to, size_t size, int flags) FORWARD(recv, ON_UNLESS_ASKED("recv", fd), fd, to, size, flags)
ssize_t send(int fd, const void *from, size_t size, int flags)
    FORWARD(send, ON_UNLESS_ASKED("send", fd), fd, from, size, flags)
ssize_t recvmsg(int fd, struct msghdr *to, int flags) FORWARD(recvmsg, ON_UNLESS_ASKED("recvmsg", fd), fd, to, flags)
ssize_t sendmsg(int fd, const struct msghdr *from, int flags)
    FORWARD(sendmsg, ON_UNLESS_ASKED("sendmsg", fd), fd, from, flags)

/* Names. */
static int numeric(const struct addrinfo *hints) { return hints && hints->ai_flags & AI_NUMERICHOST; }
int getaddrinfo(const char *restrict host, const char *restrict port, const struct addrinfo *restrict hints,
                struct addrinfo **restrict found)
    FORWARD(getaddrinfo, if (!numeric(hints)) note("getaddrinfo", host), host, port, hints, found)
int getnameinfo(const struct sockaddr *restrict of, socklen_t size, char *restrict host, socklen_t hosts,
                char *restrict port, socklen_t ports, int flags)
    FORWARD(getnameinfo, if (!(flags & NI_NUMERICHOST)) note("getnameinfo", ""), of, size, host, hosts, port, ports, flags)
struct hostent *gethostbyname(const char *name) FORWARD(gethostbyname, note("gethostbyname", name), name)

/* Processes. A vfork cannot be forwarded, as its caller's frame must not end twice; a fork may stand for it. */
pid_t fork(void) FORWARD(fork, note("fork", ""))
pid_t vfork(void) { note("vfork", ""); return NEXT(fork)(); }
int posix_spawn(pid_t *restrict pid, const char *restrict path, const posix_spawn_file_actions_t *actions,
                const posix_spawnattr_t *restrict attributes, char *const arguments[restrict], char *const env[restrict])
    FORWARD(posix_spawn, PATH("posix_spawn", path), pid, path, actions, attributes, arguments, env)
int posix_spawnp(pid_t *restrict pid, const char *restrict path, const posix_spawn_file_actions_t *actions,
                 const posix_spawnattr_t *restrict attributes, char *const arguments[restrict], char *const env[restrict])
    FORWARD(posix_spawnp, PATH("posix_spawn", path), pid, path, actions, attributes, arguments, env)

pid_t waitpid(pid_t pid, int *status, int how)
    FORWARD(waitpid, if (!(how & WNOHANG)) note("waitpid", ""), pid, status, how)

/* Pauses. */
int poll(struct pollfd *of, nfds_t count, int timeout) FORWARD(poll, if (timeout) note("poll", ""), of, count, timeout)
int nanosleep(const struct timespec *time, struct timespec *left) FORWARD(nanosleep, note("nanosleep", ""), time, left)
int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *left)
    FORWARD(clock_nanosleep, note("clock_nanosleep", ""), clock, flags, time, left)
int usleep(useconds_t time) FORWARD(usleep, note("usleep", ""), time)
int pthread_join(pthread_t thread, void **result) FORWARD(pthread_join, note("pthread_join", ""), thread, result)
