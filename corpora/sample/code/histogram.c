/* Counts how often each byte occurs in a file and prints the ten most frequent ones. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bin {
    uint8_t byte;
    uint64_t count;
};

static int by_count(const void *a, const void *b)
{
    const struct bin *x = a, *y = b;
    if (x->count != y->count)
        return x->count < y->count ? 1 : -1;
    return (int)x->byte - (int)y->byte;
}

int main(int argc, char **argv)
{
    struct bin bins[256];
    uint8_t buffer[1 << 16];
    size_t n;
    FILE *file;

    if (argc != 2) {
        fprintf(stderr, "usage: %s FILE\n", argv[0]);
        return 2;
    }
    file = fopen(argv[1], "rb");
    if (!file) {
        fprintf(stderr, "%s: %s\n", argv[1], strerror(errno));
        return EXIT_FAILURE;
    }
    for (int i = 0; i < 256; i++)
        bins[i] = (struct bin){ .byte = (uint8_t)i, .count = 0 };
    while ((n = fread(buffer, 1, sizeof buffer, file)) > 0)
        for (size_t i = 0; i < n; i++)
            bins[buffer[i]].count++;
    fclose(file);
    qsort(bins, 256, sizeof bins[0], by_count);
    for (int i = 0; i < 10 && bins[i].count > 0; i++)
        printf("0x%02x %llu\n", bins[i].byte, (unsigned long long)bins[i].count);
    return EXIT_SUCCESS;
}
