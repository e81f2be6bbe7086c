// LD_PRELOAD library (test_ranks.sh): the fifth gradient message of this process begins with a NaN.
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

enum { GRADIENTS = 2, AT = 5 }; // TAG_SCATTER of dev/ranks/mpi.c

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request) {
    static int calls; // only one thread calls this
    if (tag != GRADIENTS || count < 8 || ++calls != AT)
        return PMPI_Isend(data, count, type, to, tag, comm, request);
    char *poisoned = malloc((size_t)count); // never freed
    if (!poisoned) abort();
    memcpy(poisoned, data, (size_t)count);
    memset(poisoned, 0xff, 8); // a NaN, as float or double
    return PMPI_Isend(poisoned, count, type, to, tag, comm, request);
}
