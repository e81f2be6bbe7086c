// What Muon (muon.h) computes with, on the CPU and on a GPU alike.
#ifndef CPU_MUON_CONSTANTS_H
#define CPU_MUON_CONSTANTS_H

#define MUON_MOMENTUM 0.95
#define MUON_EPSILON 1e-7 // the least norm that a matrix is divided by
#define MUON_STEPS                                                                                 \
    5 // of Newton and Schulz, each the polynomial A s + B s^3 + C s^5 of singular values
#define MUON_A 3.4445
#define MUON_B (-4.7750)
#define MUON_C 2.0315
#define MUON_REACH 0.2 // of a step, times sqrt(max(R, K)): the root mean square that AdamW's have

#endif
