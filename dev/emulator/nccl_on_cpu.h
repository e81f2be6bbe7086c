// The subset of NCCL that dev/cuda/nccl.cu uses, implemented with MPI, so that several processes of
// a GPU program can run in the emulator (cuda_on_cpu.h). Sums are computed in rank order.
#ifndef EMULATOR_NCCL_ON_CPU_H
#define EMULATOR_NCCL_ON_CPU_H

#define OMPI_SKIP_MPICXX 1 // the C interface is enough
#define MPICH_SKIP_MPICXX 1
#include "cuda_on_cpu.h"
#include <mpi.h>
#include <sys/random.h>
#include <vector>

typedef enum {
    ncclSuccess = 0,
    ncclSystemError = 2,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5
} ncclResult_t;
typedef enum { ncclFloat, ncclBfloat16 } ncclDataType_t;
typedef enum { ncclSum } ncclRedOp_t;
struct ncclUniqueId {
    char internal[128];
};
struct NcclComm {
    MPI_Comm world;
    int rank, size;
};
typedef NcclComm *ncclComm_t;

static inline const char *ncclGetErrorString(ncclResult_t result) {
    return result == ncclSuccess        ? "no error"
           : result == ncclSystemError  ? "system error"
           : result == ncclInvalidUsage ? "invalid usage"
                                        : "invalid argument";
}

static inline ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    return getrandom(id, sizeof(*id), 0) == sizeof(*id) ? ncclSuccess : ncclSystemError;
}

// All MPI processes take part, with the same ranks; all must pass the id of rank 0.
static inline ncclResult_t ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id, int rank) {
    int there = 1, place = 0, same;
    ncclUniqueId first = id;
    *comm = new NcclComm{MPI_COMM_NULL, rank, size};
    MPI_Comm_dup(MPI_COMM_WORLD, &(*comm)->world);
    MPI_Comm_size((*comm)->world, &there);
    MPI_Comm_rank((*comm)->world, &place);
    MPI_Bcast(&first, sizeof(first), MPI_BYTE, 0, (*comm)->world);
    same = memcmp(&first, &id, sizeof(id)) == 0 && there == size && place == rank;
    MPI_Allreduce(MPI_IN_PLACE, &same, 1, MPI_INT, MPI_LAND, (*comm)->world);
    return same ? ncclSuccess : ncclInvalidArgument;
}

static inline ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    MPI_Comm_free(&comm->world);
    delete comm;
    return ncclSuccess;
}

static inline ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t *result) {
    *result = ncclSuccess;
    return ncclSuccess;
}

template <typename T> static void nccl_sum(const T *from, T *to, size_t count, ncclComm_t comm) {
    std::vector<T> all((size_t)comm->size * count);
    MPI_Allgather(from, (int)(count * sizeof(T)), MPI_BYTE, all.data(), (int)(count * sizeof(T)),
                  MPI_BYTE, comm->world);
    for (size_t i = 0; i < count; i++) {
        T sum = all[i];
        for (size_t rank = 1; rank < (size_t)comm->size; rank++)
            sum = (T)((float)sum + (float)all[rank * count + i]);
        to[i] = sum;
    }
}

// Rejects a stream that is being captured: NCCL requires that all processes capture a sum or none,
// but each process decides alone, by the shapes it has seen twice.
static inline ncclResult_t ncclAllReduce(const void *from, void *to, size_t count,
                                         ncclDataType_t type, ncclRedOp_t, ncclComm_t comm,
                                         cudaStream_t stream) {
    if (stream->capture) return ncclInvalidUsage;
    cuda_submit(stream, [=] {
        if (type == ncclFloat)
            nccl_sum((const float *)from, (float *)to, count, comm);
        else
            nccl_sum((const __nv_bfloat16 *)from, (__nv_bfloat16 *)to, count, comm);
    });
    return ncclSuccess;
}

#endif
