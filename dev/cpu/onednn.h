// Differences between oneDNN 2.x and 3.x, and error checks. A matrix description is a pointer in
// both: 3.x hides the struct, for 2.x it is allocated on the heap.
#ifndef CPU_ONEDNN_H
#define CPU_ONEDNN_H

#include "error.h"
#include "memory.h"
#include <dnnl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

static inline void onednn_check(dnnl_status_t status, const char *action) {
    if (status != dnnl_success)
        fail("oneDNN %d.%d: cannot %s (status %d)", dnnl_version()->major, dnnl_version()->minor,
             action, (int)status);
}

#if DNNL_VERSION_MAJOR >= 3

typedef dnnl_memory_desc_t MatrixLayout;
typedef const_dnnl_memory_desc_t ConstMatrixLayout;

static inline MatrixLayout layout_strided(const dnnl_dims_t shape, dnnl_data_type_t type,
                                          const dnnl_dims_t strides) {
    MatrixLayout layout;
    onednn_check(dnnl_memory_desc_create_with_strides(&layout, 2, shape, type, strides),
                 "describe a matrix");
    return layout;
}

// The library chooses how the matrix is packed.
static inline MatrixLayout layout_any(const dnnl_dims_t shape, dnnl_data_type_t type) {
    MatrixLayout layout;
    onednn_check(dnnl_memory_desc_create_with_tag(&layout, 2, shape, type, dnnl_format_tag_any),
                 "describe a matrix");
    return layout;
}

static inline MatrixLayout layout_copy(ConstMatrixLayout source) {
    MatrixLayout layout;
    onednn_check(dnnl_memory_desc_clone(&layout, source), "copy a description");
    return layout;
}

static inline void layout_free(MatrixLayout layout) {
    onednn_check(dnnl_memory_desc_destroy(layout), "free a description");
}

static inline dnnl_status_t append_sum(dnnl_post_ops_t operations) {
    return dnnl_post_ops_append_sum(operations, 1.0f, 0, dnnl_data_type_undef);
}

static inline dnnl_status_t describe_product(dnnl_primitive_desc_t *description,
                                             dnnl_engine_t engine, ConstMatrixLayout a,
                                             ConstMatrixLayout b, ConstMatrixLayout c,
                                             const_dnnl_primitive_attr_t attributes) {
    return dnnl_matmul_primitive_desc_create(description, engine, a, b, NULL, c, attributes);
}

#else

typedef dnnl_memory_desc_t *MatrixLayout;
typedef const dnnl_memory_desc_t *ConstMatrixLayout;

static inline MatrixLayout layout_strided(const dnnl_dims_t shape, dnnl_data_type_t type,
                                          const dnnl_dims_t strides) {
    MatrixLayout layout = allocate(1, sizeof(*layout), "a matrix description");
    onednn_check(dnnl_memory_desc_init_by_strides(layout, 2, shape, type, strides),
                 "describe a matrix");
    return layout;
}

// The library chooses how the matrix is packed.
static inline MatrixLayout layout_any(const dnnl_dims_t shape, dnnl_data_type_t type) {
    MatrixLayout layout = allocate(1, sizeof(*layout), "a matrix description");
    onednn_check(dnnl_memory_desc_init_by_tag(layout, 2, shape, type, dnnl_format_tag_any),
                 "describe a matrix");
    return layout;
}

static inline MatrixLayout layout_copy(ConstMatrixLayout source) {
    MatrixLayout layout = allocate(1, sizeof(*layout), "a matrix description");
    *layout = *source;
    return layout;
}

static inline void layout_free(MatrixLayout layout) {
    free(layout);
}

static inline dnnl_status_t append_sum(dnnl_post_ops_t operations) {
    return dnnl_post_ops_append_sum(operations, 1.0f);
}

static inline dnnl_status_t describe_product(dnnl_primitive_desc_t *description,
                                             dnnl_engine_t engine, ConstMatrixLayout a,
                                             ConstMatrixLayout b, ConstMatrixLayout c,
                                             const_dnnl_primitive_attr_t attributes) {
    dnnl_matmul_desc_t operation;
    const dnnl_status_t status = dnnl_matmul_desc_init(&operation, a, b, NULL, c);
    if (status != dnnl_success) return status;
    return dnnl_primitive_desc_create(description, &operation, attributes, engine, NULL);
}

#endif

#endif
