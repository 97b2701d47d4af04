/* A disk that fails on request: preloaded into the daemon, it lets writes to the journal fail while the file
 * named by LOOPD_FAULT_CTL says so: "ENOSPC", "EIO" (every write), "EIO-SYNC" (only fsync).
 *
 *     cc -shared -fPIC -O1 -o shim.so shim.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int fault(int fd, int sync) {
    const char *ctl = getenv("LOOPD_FAULT_CTL");
    char said[16] = {0}, link[64], path[512];
    int control, saved = errno;
    ssize_t n;
    if (ctl == NULL || access(ctl, F_OK) != 0) { errno = saved; return 0; }
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof path - 1);
    if (n <= 0) { errno = saved; return 0; }
    path[n] = 0;
    if (strstr(path, "journal.sqlite") == NULL || strstr(path, "-shm") != NULL) { errno = saved; return 0; }
    control = open(ctl, O_RDONLY | O_CLOEXEC);
    if (control < 0) { errno = saved; return 0; }
    n = read(control, said, sizeof said - 1);
    close(control);
    errno = saved;
    if (n <= 0) return 0;
    if (strncmp(said, "EIO-SYNC", 8) == 0) return sync ? EIO : 0;
    if (strncmp(said, "EIO", 3) == 0) return EIO;
    if (strncmp(said, "ENOSPC", 6) == 0) return sync ? 0 : ENOSPC;
    return 0;
}

#define CHECK(fd, sync) do { int e = fault(fd, sync); if (e) { errno = e; return -1; } } while (0)
#define REAL(name, type) static type real; if (!real) real = (type)dlsym(RTLD_NEXT, name)

typedef ssize_t (*pwrite_t)(int, const void *, size_t, off_t);
typedef ssize_t (*write_t)(int, const void *, size_t);
typedef int (*sync_t)(int);
typedef int (*truncate_t)(int, off_t);

ssize_t pwrite(int fd, const void *b, size_t n, off_t o) { REAL("pwrite", pwrite_t); CHECK(fd, 0); return real(fd, b, n, o); }
ssize_t pwrite64(int fd, const void *b, size_t n, off_t o) { REAL("pwrite64", pwrite_t); CHECK(fd, 0); return real(fd, b, n, o); }
ssize_t write(int fd, const void *b, size_t n) { REAL("write", write_t); CHECK(fd, 0); return real(fd, b, n); }
int fsync(int fd) { REAL("fsync", sync_t); CHECK(fd, 1); return real(fd); }
int fdatasync(int fd) { REAL("fdatasync", sync_t); CHECK(fd, 1); return real(fd); }
int ftruncate(int fd, off_t n) { REAL("ftruncate", truncate_t); CHECK(fd, 0); return real(fd, n); }
int ftruncate64(int fd, off_t n) { REAL("ftruncate64", truncate_t); CHECK(fd, 0); return real(fd, n); }
