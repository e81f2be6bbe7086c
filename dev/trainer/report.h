// What a run leaves for a reader: DIR/report.md and the picture in it.
#ifndef TRAINER_REPORT_H
#define TRAINER_REPORT_H

enum { REPORT_SAMPLES = 3, REPORT_CURVE_STEPS = 100 };

// Writes DIR/report.md from DIR/log.jsonl: commands, model, data, processor, the best
// validation and the test in every unit, speed; then the texts, UTF-8 or not, one block each (count
// 0: none). Where REPORT_CURVE_STEPS steps have a loss and gnuplot is installed, DIR/curve.png
// shows the loss, and the report shows that. Files are replaced whole; a run whose report cannot be
// written ends the program.
void report_write(const char *directory, char *const *samples, int count);

#endif
