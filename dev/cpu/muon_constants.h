// Constants of Muon (muon.h), shared by the CPU and the GPU code.
#ifndef CPU_MUON_CONSTANTS_H
#define CPU_MUON_CONSTANTS_H

#define MUON_MOMENTUM 0.95
#define MUON_EPSILON 1e-7 // lower bound on the norm that a matrix is divided by
#define MUON_STEPS                                                                                 \
    5 // Newton-Schulz steps, each of which maps singular values s to A s + B s^3 + C s^5
#define MUON_A 3.4445
#define MUON_B (-4.7750)
#define MUON_C 2.0315
#define MUON_REACH 0.2 // times sqrt(max(R, K)): gives steps the root mean square of AdamW's

#endif
