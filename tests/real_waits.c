/* Sleeps and timed waits by the kernel's own clocks, preloaded before libfaketime. With a monotonic
   clock that it leaves alone, that library refuses sleeps until an instant, and each of its timed
   waits reads the environment, which crashes while another thread changes it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000L
#define IS_MONOTONIC 2 /* bit of __wrefs in glibc: the clock of a condition */

typedef int timed_wait(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static timed_wait *wait_until;

__attribute__((constructor)) static void find_wait(void)
{
    void *libc = dlopen("libc.so.6", RTLD_LAZY);
    wait_until = (timed_wait *)dlsym(libc, "pthread_cond_timedwait");
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left)
{
    return syscall(SYS_clock_nanosleep, clock, flags, until, left) == 0 ? 0 : errno;
}

int pthread_cond_timedwait(
    pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until)
{
    if (cond->__data.__wrefs & IS_MONOTONIC)
        return wait_until(cond, mutex, until);
    struct timespec faked, real; /* of a clock that is faked: wait as long as it says */
    clock_gettime(CLOCK_REALTIME, &faked);
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &real);
    real.tv_sec += until->tv_sec - faked.tv_sec;
    real.tv_nsec += until->tv_nsec - faked.tv_nsec;
    if (real.tv_nsec < 0) {
        real.tv_sec--;
        real.tv_nsec += SECOND_NS;
    } else if (real.tv_nsec >= SECOND_NS) {
        real.tv_sec++;
        real.tv_nsec -= SECOND_NS;
    }
    return wait_until(cond, mutex, &real);
}
