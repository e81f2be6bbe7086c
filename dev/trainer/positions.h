// Loss by position in the context (--eval-positions): does a model benefit from a longer context?
#ifndef TRAINER_POSITIONS_H
#define TRAINER_POSITIONS_H

#include "batch.h"
#include "log.h"
#include "ranks.h"
#include "real.h"

enum { POSITION_RANGES = 32 };

// Sums over positions 1, 2 to 3, 4 to 7, and so on, counted from 1.
typedef struct {
    double losses[POSITION_RANGES], targets[POSITION_RANGES]; // sums
} PositionLosses;

// Adds a batch, for whose targets `losses` (B, T) holds the losses.
void positions_add(PositionLosses *positions, const Batch *batch, const real *losses);

// Sums over all ranks.
void positions_sum(PositionLosses *positions, Ranks *ranks);

// Prints a table, and logs {"event": "positions", "positions": [{"from", "to", "loss", "targets"},
// ...]}.
void positions_report(const PositionLosses *positions, Log *log);

#endif
