// --verify DIR: finds which files of a run or a data set can still be read.
#ifndef TRAINER_VERIFY_H
#define TRAINER_VERIFY_H

// Reads every file of a run or a data set; prints a row for each, and the newest complete
// checkpoint that is good. Returns the program's exit code: 1 if a file is damaged. Exits with an
// error if DIR holds neither.
int verify(const char *directory);

#endif
