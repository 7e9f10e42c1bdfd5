// LD_PRELOAD shim: logs every call that changes something below FAULT_DIR, and lets the FAULT_AT-th of them fail with
// FAULT_ERRNO, or kills the process there when FAULT_ERRNO is 0.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_int n_calls;

// 1 when this call is to fail; errno is set.
static int strikes(const char *call, const char *path) {
  const char *dir = getenv("FAULT_DIR"), *at = getenv("FAULT_AT"), *error = getenv("FAULT_ERRNO");
  if (!dir || !path || strncmp(path, dir, strlen(dir))) return 0;
  const char *log = getenv("FAULT_LOG");
  if (log) {
    char line[5000];
    int n = snprintf(line, sizeof line, "%s %s\n", call, path);
    long fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    syscall(SYS_write, fd, line, n);
    syscall(SYS_close, fd);
  }
  if (atomic_fetch_add(&n_calls, 1) + 1 != (at ? atoi(at) : 0)) return 0;
  if (!error || !atoi(error)) kill(getpid(), SIGKILL);
  errno = atoi(error);
  return 1;
}

static int strikes_fd(const char *call, int fd) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return strikes(call, path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *bytes, size_t n) {
  return strikes_fd("write", fd) ? -1 : REAL(write)(fd, bytes, n);
}
ssize_t pwrite64(int fd, const void *bytes, size_t n, off64_t at) {
  return strikes_fd("write", fd) ? -1 : REAL(pwrite64)(fd, bytes, n, at);
}
int fsync(int fd) { return strikes_fd("fsync", fd) ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return strikes_fd("fdatasync", fd) ? -1 : REAL(fdatasync)(fd); }
int ftruncate64(int fd, off64_t n) { return strikes_fd("reserve", fd) ? -1 : REAL(ftruncate64)(fd, n); }
int mkdir(const char *path, mode_t mode) { return strikes("mkdir", path) ? -1 : REAL(mkdir)(path, mode); }
int rename(const char *from, const char *to) { return strikes("rename", to) ? -1 : REAL(rename)(from, to); }
int open64(const char *path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return (flags & O_CREAT) && strikes("create", path) ? -1 : REAL(open64)(path, flags, mode);
}
