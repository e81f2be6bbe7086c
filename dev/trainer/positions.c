#include "positions.h"

#include "memory.h"
#include <math.h>
#include <stdlib.h>

void positions_add(PositionLosses *p, const Batch *batch, const real *losses) {
    for (int64_t t = 0, range = 0; t < batch->length; t++) {
        range += t + 1 == INT64_C(2) << range;
        for (int64_t b = 0; b < batch->batch; b++) {
            const int64_t i = b * batch->length + t;
            if (batch->targets[i] < 0) continue;
            p->losses[range] += (double)losses[i];
            p->targets[range]++;
        }
    }
}

void positions_sum(PositionLosses *p, Ranks *ranks) {
    ranks_sum(ranks, p->losses, POSITION_RANGES);
    ranks_sum(ranks, p->targets, POSITION_RANGES);
}

void positions_report(const PositionLosses *p, Log *log) {
    JsonWriter *w = log_begin(log);
    log_line(log, "loss by position in the context"); // nothing with --json
    json_add_string(w, "event", "positions");
    json_open(w, "positions", '[');
    for (int range = 0; range < POSITION_RANGES; range++) {
        if (p->targets[range] == 0) continue;
        const double from = ldexp(1, range), to = ldexp(2, range) - 1,
                     loss = p->losses[range] / p->targets[range];
        char *name = format_string("%.0f to %.0f", from, to);
        log_line(log, "  %-16s  loss %.4f, mean of %.0f targets", name, loss, p->targets[range]);
        free(name);
        json_begin(w, '{');
        json_add_number(w, "from", from);
        json_add_number(w, "to", to);
        json_add_number(w, "loss", loss);
        json_add_number(w, "targets", p->targets[range]);
        json_end(w, '}');
    }
    json_end(w, ']');
    log_end(log);
}
