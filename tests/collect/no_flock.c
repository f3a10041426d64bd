/* A file system without locks: flock answers with the errno in NO_FLOCK. For LD_PRELOAD. */
#include <errno.h>
#include <stdlib.h>

int flock(int descriptor, int operation)
{
    const char *number = getenv("NO_FLOCK");
    (void)descriptor;
    (void)operation;
    errno = number ? atoi(number) : ENOSYS;
    return -1;
}
