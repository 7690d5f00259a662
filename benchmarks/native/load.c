/* Clients that cost little: send chat requests to one address and measure the answers.
 *
 *     load NAME=NUMBER ...
 *
 *     port         where to
 *     connections  most requests at once (64)
 *     rate         requests a second, at fixed times whether or not answers come; 0: each connection
 *                  sends its next request when it has the answer to the last one (0)
 *     seconds      how long requests are begun (2)
 *     requests     end after so many; 0: only after that time (0)
 *     bytes        size of a body, about (400)
 *     groups       prompts begin in so many different ways (64)
 *     shuffle      1: groups come in random order, 0: in turn (1)
 *     stream       1: ask for streams (0)
 *     timeout_ms   when an answer is late, and given up (5000)
 *
 * Prints one line of JSON: what was answered, what was not and why, and times. The time to the first
 * byte counts from when the request was due; of a stream it is the first event that counts.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { READ_BYTES = 1 << 18, TAIL_BYTES = 16, HEAD_MAX = 8192, LOOK_US = 20000 };
enum failure { NONE, CONNECT, STATUS, CUT, LATE, FAILURES };
enum place { SIZE, DATA, TRAILER };

struct samples {
    float *values;
    size_t count, room;
};

struct client {
    int socket, busy, in_head, first_seen, chunked, done_seen, status;
    char head[HEAD_MAX + 1];
    size_t have;
    char tail[TAIL_BYTES];
    enum place place;
    unsigned long left;  /* of the body, or of a chunk with the line end after it */
    int line_bytes;      /* of the line of a chunk's size or of the trailer */
    long long due_us, last_us;
    char *unsent;
    size_t unsent_bytes;
};

static long port, connections = 64, rate, seconds = 2, milliseconds, requests, bytes = 400, groups = 64, shuffle = 1,
                  stream, timeout_ms = 5000;
static struct client *clients;
static int poller;
static char *request;
static size_t request_bytes, group_at, tail_at;
static long begun, answered, failures[FAILURES], events;
static struct samples first_bytes, pauses;
static double slowest_s;
static int *idle;
static long idle_count;
static unsigned long long random_state = 88172645463325252ULL;

static long long now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

static unsigned long next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state >> 1;
}

static void add(struct samples *to, double value)
{
    if (to->count == to->room) {
        to->room = to->room ? 2 * to->room : 4096;
        to->values = realloc(to->values, to->room * sizeof *to->values);
    }
    to->values[to->count++] = value;
}

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double part(struct samples *of, double share)
{
    return of->count ? of->values[(size_t)(share * (of->count - 1))] : -1;
}

/* -- requests ---------------------------------------------------------------------------------- */

static void prepare_request(void)
{
    static const char *words[] = {"river", "stone", "lantern", "orchard", "window", "harbour", "copper", "meadow"};
    char *body = calloc(1, bytes + 512);
    int size = sprintf(body, "{\"model\":\"mock\",\"stream\":%s,\"max_tokens\":20,\"messages\":[{\"role\":\"user\","
                             "\"content\":\"group ", stream ? "true" : "false");
    int group = size;
    size += sprintf(body + size, "00000000 ");
    for (long at = 0; size + 24 < bytes; at++) size += sprintf(body + size, "%s ", words[at * at % 7 % 8]);
    int tail = size;
    size += sprintf(body + size, "0000000000\"}]}");
    request = malloc(size + 512);
    int head = sprintf(request, "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%ld\r\nuser-agent: load\r\n"
                                "accept: */*\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n",
                       port, size);
    memcpy(request + head, body, size);
    request_bytes = head + size;
    group_at = head + group;
    tail_at = head + tail;
    free(body);
}

static void write_digits(char *at, int count, unsigned long number)
{
    for (; count--; number /= 10) at[count] = '0' + number % 10;
}

static int connect_client(struct client *c)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1;
    c->socket = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(c->socket, (struct sockaddr *)&address, sizeof address)) {
        close(c->socket);
        c->socket = -1;
        return 0;
    }
    setsockopt(c->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = c - clients};
    epoll_ctl(poller, EPOLL_CTL_ADD, c->socket, &event);
    return 1;
}

static void disconnect(struct client *c)
{
    if (c->socket >= 0) close(c->socket);
    c->socket = -1;
    free(c->unsent);
    c->unsent = NULL;
}

static void watch(struct client *c, unsigned events_wanted)
{
    struct epoll_event event = {.events = events_wanted, .data.u32 = c - clients};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->socket, &event);
}

static void rest(struct client *c)
{
    c->busy = 0;
    idle[idle_count++] = c - clients;
}

static void fail(struct client *c, enum failure why)
{
    failures[why]++;
    disconnect(c);
    rest(c);
}

static void begin(struct client *c, long long due_us)
{
    char *unsent = request;
    write_digits(request + group_at, 8, (shuffle ? next_random() : (unsigned long)begun) % groups);
    write_digits(request + tail_at, 10, begun++);
    c->busy = c->in_head = 1;
    c->have = 0;
    c->first_seen = c->done_seen = c->status = 0;
    c->due_us = c->last_us = due_us;
    memset(c->tail, 0, sizeof c->tail);
    if (c->socket < 0 && !connect_client(c)) {
        fail(c, CONNECT);
        return;
    }
    ssize_t sent = send(c->socket, unsent, request_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) sent = 0;
    if ((size_t)sent < request_bytes) {
        c->unsent_bytes = request_bytes - sent;
        c->unsent = malloc(c->unsent_bytes);
        memcpy(c->unsent, unsent + sent, c->unsent_bytes);
        watch(c, EPOLLIN | EPOLLOUT);
    }
}

static void send_rest(struct client *c)
{
    ssize_t sent = send(c->socket, c->unsent, c->unsent_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0) return;
    c->unsent_bytes -= sent;
    memmove(c->unsent, c->unsent + sent, c->unsent_bytes);
    if (!c->unsent_bytes) {
        free(c->unsent);
        c->unsent = NULL;
        watch(c, EPOLLIN);
    }
}

/* -- answers ----------------------------------------------------------------------------------- */

static void complete(struct client *c)
{
    double took_s = (now_us() - c->due_us) / 1e6;
    if (c->status != 200) {
        fail(c, STATUS);
        return;
    }
    if (stream && !c->done_seen) {
        fail(c, CUT);
        return;
    }
    answered++;
    if (took_s > slowest_s) slowest_s = took_s;
    rest(c);
}

/* Follow the chunks; 1 if the last one has come. */
static int follow_chunks(struct client *c, const char *data, size_t size)
{
    for (const char *end = data + size; data < end;) {
        if (c->place == DATA) {
            size_t step = c->left < (size_t)(end - data) ? c->left : (size_t)(end - data);
            data += step;
            c->left -= step;
            if (!c->left) {
                c->place = SIZE;
                c->line_bytes = 0;
            }
            continue;
        }
        char byte = *data++;
        if (byte == '\r') continue;
        if (byte != '\n') {
            int digit = byte <= '9' ? byte - '0' : (byte | 32) - 'a' + 10;
            if (c->place == SIZE) c->left = c->line_bytes ? c->left * 16 + digit : (unsigned long)digit;
            c->line_bytes++;
            continue;
        }
        if (c->place == TRAILER && !c->line_bytes) return 1;
        c->line_bytes = 0;
        if (c->place == SIZE) {
            c->place = c->left ? DATA : TRAILER;
            c->left += 2;
        }
    }
    return 0;
}

/* The first event counts from the time at which the request was due, the others from the one before. */
static void note_times(struct client *c, const char *data, size_t size, size_t fresh)
{
    long long now = now_us();
    long found = 0;
    if (stream) {
        const char *from = data;
        for (size_t left = size; (from = memmem(from, left, "data: ", 6)) != NULL; left = data + size - from) {
            from += 6;
            found += from > data + size - fresh; /* not those of the tail, which were seen */
        }
        if (memmem(data, size, "[DONE]", 6)) c->done_seen = 1;
        if (!found) return;
        events += found;
    }
    if (!c->first_seen) add(&first_bytes, (now - c->due_us) / 1e3);
    else if (stream) add(&pauses, (now - c->last_us) / 1e3);
    c->first_seen = 1;
    c->last_us = now;
}

/* The head; what of `data` belongs to it, or -1 while it is not complete. */
static long read_head(struct client *c, const char *data, size_t size)
{
    size_t before = c->have, room = HEAD_MAX - c->have;
    memcpy(c->head + c->have, data, size < room ? size : room);
    c->have += size < room ? size : room;
    c->head[c->have] = 0;
    char *end = strstr(c->head, "\r\n\r\n");
    if (!end) return -1;
    *end = 0;
    c->status = atoi(c->head + 9);
    char *length = strcasestr(c->head, "\r\ncontent-length:");
    c->chunked = length == NULL;
    c->left = length ? strtoul(length + 17, NULL, 10) : 0;
    c->place = SIZE;
    c->line_bytes = 0;
    c->in_head = 0;
    return end + 4 - c->head - before;
}

static void take(struct client *c, char *data, size_t size)
{
    memcpy(data - TAIL_BYTES, c->tail, TAIL_BYTES);
    note_times(c, data - TAIL_BYTES, size + TAIL_BYTES, size);
    memcpy(c->tail, data + size - TAIL_BYTES, TAIL_BYTES);
    if (c->in_head) {
        long used = read_head(c, data, size);
        if (used < 0) return;
        data += used;
        size -= used;
    }
    if (c->chunked) {
        if (follow_chunks(c, data, size)) complete(c);
        return;
    }
    c->left -= size < c->left ? size : c->left;
    if (!c->left) complete(c);
}

static void receive(struct client *c)
{
    static char buffer[TAIL_BYTES + READ_BYTES];
    ssize_t got = recv(c->socket, buffer + TAIL_BYTES, READ_BYTES, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got > 0 && c->busy) {
        take(c, buffer + TAIL_BYTES, got);
    } else if (c->busy) {
        fail(c, CUT);
    } else {
        disconnect(c); /* the server ended an idle connection */
    }
}

/* -- the run ----------------------------------------------------------------------------------- */

static int may_begin(long long now, long long end_us) { return now < end_us && (!requests || begun < requests); }

static void begin_what_is_due(long long now, long long start_us, long long end_us)
{
    long most = rate ? begun + idle_count : connections + begun;
    while (idle_count && begun < most && may_begin(now, end_us)) {
        long long due_us = rate ? start_us + begun * 1000000 / rate : now;
        if (due_us > now) return;
        struct client *c = &clients[idle[--idle_count]];
        begin(c, due_us);
    }
}

static void give_up_late(long long now)
{
    for (long at = 0; at < connections; at++)
        if (clients[at].busy && now - clients[at].due_us > timeout_ms * 1000) fail(&clients[at], LATE);
}

static void run(long long start_us)
{
    struct epoll_event ready[256];
    long long end_us = start_us + seconds * 1000000 + milliseconds * 1000, looked_us = start_us;
    for (;;) {
        long long now = now_us();
        begin_what_is_due(now, start_us, end_us);
        if (idle_count == connections && !may_begin(now, end_us)) return;
        long long wait_us = LOOK_US;
        if (rate && idle_count && may_begin(now, end_us)) {
            wait_us = start_us + begun * 1000000 / rate - now;
            wait_us = wait_us < 0 ? 0 : wait_us < LOOK_US ? wait_us : LOOK_US;
        }
        struct timespec pause = {.tv_nsec = wait_us * 1000};
        int count = epoll_pwait2(poller, ready, 256, &pause, NULL);
        for (int at = 0; at < count; at++) {
            struct client *c = &clients[ready[at].data.u32];
            if (c->unsent && ready[at].events & EPOLLOUT) send_rest(c);
            if (ready[at].events & ~EPOLLOUT && c->socket >= 0) receive(c);
        }
        if (now - looked_us > LOOK_US) give_up_late(looked_us = now);
    }
}

static void read_arguments(int count, char **arguments)
{
    struct { const char *name; long *value; } known[] = {
        {"port", &port}, {"connections", &connections}, {"rate", &rate}, {"seconds", &seconds},
        {"milliseconds", &milliseconds}, {"requests", &requests}, {"bytes", &bytes}, {"groups", &groups},
        {"shuffle", &shuffle}, {"stream", &stream}, {"timeout_ms", &timeout_ms}};
    for (int at = 1; at < count; at++) {
        char *value = strchr(arguments[at], '=');
        size_t row = 0, rows = sizeof known / sizeof *known;
        while (value && row < rows &&
               strncmp(known[row].name, arguments[at], value - arguments[at]) + known[row].name[value - arguments[at]])
            row++;
        if (!value || row == rows) {
            fprintf(stderr, "unknown argument %s\n", arguments[at]);
            exit(2);
        }
        *known[row].value = atol(value + 1);
    }
}

int main(int count, char **arguments)
{
    signal(SIGPIPE, SIG_IGN);
    read_arguments(count, arguments);
    poller = epoll_create1(0);
    prepare_request();
    clients = calloc(connections, sizeof *clients);
    idle = calloc(connections, sizeof *idle);
    for (long at = 0; at < connections; at++) {
        clients[at].socket = -1;
        idle[idle_count++] = at;
    }
    long long start_us = now_us();
    run(start_us);
    double took_s = (now_us() - start_us) / 1e6;
    qsort(first_bytes.values, first_bytes.count, sizeof(float), compare);
    qsort(pauses.values, pauses.count, sizeof(float), compare);
    printf("{\"answered\":%ld,\"refused\":%ld,\"status\":%ld,\"cut\":%ld,\"late\":%ld,\"seconds\":%.6f,\"chunks\":%ld,"
           "\"first_byte_p50_ms\":%.4f,\"first_byte_p99_ms\":%.4f,\"pause_p50_ms\":%.4f,\"pause_p99_ms\":%.4f,"
           "\"slowest_s\":%.4f}\n",
           answered, failures[CONNECT], failures[STATUS], failures[CUT], failures[LATE], took_s, events,
           part(&first_bytes, 0.5), part(&first_bytes, 0.99), part(&pauses, 0.5), part(&pauses, 0.99), slowest_s);
    return 0;
}
