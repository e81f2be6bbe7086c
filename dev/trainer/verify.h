// --verify DIR: what of a run or a data set can still be read.
#ifndef TRAINER_VERIFY_H
#define TRAINER_VERIFY_H

// Reads every file of a run or a data set, prints a row for each and which complete checkpoint is
// the newest good one. Returns the program's exit code: 1 if a file is damaged. Ends the program if
// DIR holds neither.
int verify(const char *directory);

#endif
