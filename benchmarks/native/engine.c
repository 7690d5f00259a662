/* An engine that costs nothing: what stands between a client and it is all there is to measure.
 *
 *     engine PORT [PORT ...]
 *
 * Each port is one engine with vLLM's routes for chat, completions, models, metrics, health and
 * tokenize. An answer begins after `first_us` and has `chunks` chunks, `gap_us` apart, if it is a
 * stream. Settings and counts, of each port for itself:
 *
 *     POST /set?first_us=N&gap_us=N&chunks=N&hang=0|1&reset=1
 *     GET  /count    {"chats": answers begun, "extra": other requests than chats, "groups": different
 *                     prompt groups, "most": most chats at once, "last_chat_s": time of the last one}
 *
 * A prompt's group is the number after the first "group " in the body. With `hang`, requests that
 * compute are taken and never answered; everything else goes on as before.
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

enum { PORTS_MAX = 16, GROUPS_MAX = 1 << 16, SHOWN_BYTES = 16384 };

struct port {
    int socket;
    long first_us, gap_us, chunks, hang;
    long chats, extra, groups, active, most, tokens;
    double last_chat_s;
    unsigned char seen[GROUPS_MAX / 8];
};

struct connection {
    int socket;
    struct port *port;
    char in[SHOWN_BYTES]; /* the head of a request and as much of its body as shows what it wants */
    size_t have, head, body, length;
    int answering, stream, sent_chunks;
    long long due_us; /* of the next piece of the answer */
    struct connection *earlier, *later;
    int waiting;
};

static struct port ports[PORTS_MAX];
static int port_count, poller;
static struct connection *first_due, *last_due;

static long long now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

/* -- what is due, in order of time ------------------------------------------------------------- */

static void wait_until(struct connection *c, long long due_us)
{
    struct connection *before = last_due;
    while (before && before->due_us > due_us)
        before = before->earlier;
    c->due_us = due_us;
    c->earlier = before;
    c->later = before ? before->later : first_due;
    if (c->later) c->later->earlier = c; else last_due = c;
    if (before) before->later = c; else first_due = c;
    c->waiting = 1;
}

static void stop_waiting(struct connection *c)
{
    if (!c->waiting) return;
    if (c->earlier) c->earlier->later = c->later; else first_due = c->later;
    if (c->later) c->later->earlier = c->earlier; else last_due = c->earlier;
    c->waiting = 0;
}

/* -- answers ----------------------------------------------------------------------------------- */

static void put(struct connection *c, const char *data, size_t size)
{
    if (send(c->socket, data, size, MSG_NOSIGNAL) != (ssize_t)size)
        shutdown(c->socket, SHUT_RDWR); /* answers are small: who does not take them has left */
}

static void answer(struct connection *c, const char *status, const char *type, const char *body)
{
    static char text[10 * SHOWN_BYTES];
    int size = snprintf(text, sizeof text, "HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %zu\r\n\r\n%s",
                        status, type, strlen(body), body);
    put(c, text, size);
}

static const char JSON[] = "application/json";
static const char ANSWER[] =
    "{\"id\":\"c-0\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"mock\",\"choices\":[{\"index\":0,"
    "\"message\":{\"role\":\"assistant\",\"content\":\"one two three four\"},\"text\":\"one\","
    "\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":20,\"total_tokens\":120,"
    "\"prompt_tokens_details\":null}}";
static const char EVENT[] =
    "data: {\"id\":\"c-0\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"mock\",\"choices\":"
    "[{\"index\":0,\"delta\":{\"content\":\" token\"},\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null}],"
    "\"token_ids\":null}\n\n";
static const char STREAM_HEAD[] =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
static const char STREAM_END[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";

static void end_answer(struct connection *c)
{
    c->answering = 0;
    c->port->active--;
}

static void next_piece(struct connection *c)
{
    struct port *p = c->port;
    char text[1024];
    int size = 0;
    p->tokens++;
    if (!c->stream) {
        end_answer(c);
        answer(c, "200 OK", JSON, ANSWER);
        return;
    }
    if (!c->sent_chunks) size = sprintf(text, "%s", STREAM_HEAD);
    size += sprintf(text + size, "%zx\r\n%s\r\n", sizeof EVENT - 1, EVENT);
    if (++c->sent_chunks >= p->chunks) {
        size += sprintf(text + size, "%s", STREAM_END);
        end_answer(c);
    } else {
        wait_until(c, c->due_us + p->gap_us);
    }
    put(c, text, size);
}

static void note_group(struct connection *c)
{
    struct port *p = c->port;
    char *found = memmem(c->in + c->head, c->have - c->head, "group ", 6);
    if (!found) return;
    unsigned long group = strtoul(found + 6, NULL, 10) % GROUPS_MAX;
    if (!(p->seen[group / 8] >> group % 8 & 1)) p->groups++;
    p->seen[group / 8] |= 1 << group % 8;
}

static void compute(struct connection *c, int chat)
{
    struct port *p = c->port;
    c->answering = 1;
    c->stream = memmem(c->in + c->head, c->have - c->head, "\"stream\":true", 13) != NULL;
    c->sent_chunks = 0;
    if (++p->active > p->most) p->most = p->active;
    if (chat) {
        p->chats++;
        p->last_chat_s = now_us() / 1e6;
        note_group(c);
    }
    if (p->hang) return;
    long long now = now_us();
    if (p->first_us) {
        wait_until(c, now + p->first_us);
    } else {
        c->due_us = now;
        next_piece(c);
    }
}

/* Four bytes of the body make one token, so that equal beginnings have equal tokens and others do not. */
static void tokenize(struct connection *c)
{
    static char text[8 * SHOWN_BYTES];
    int size = sprintf(text, "{\"max_model_len\":1048576,\"tokens\":["), count = 0;
    for (size_t at = c->head; at + 4 <= c->have; at += 4, count++) {
        unsigned word;
        memcpy(&word, c->in + at, 4);
        size += sprintf(text + size, "%s%u", count ? "," : "", word * 2654435761u >> 15);
    }
    sprintf(text + size, "],\"count\":%d}", count);
    answer(c, "200 OK", JSON, text);
}

static void set(struct port *p, const char *query)
{
    struct { const char *name; long *value; } known[] = {
        {"first_us=", &p->first_us}, {"gap_us=", &p->gap_us}, {"chunks=", &p->chunks}, {"hang=", &p->hang}};
    for (size_t at = 0; at < sizeof known / sizeof *known; at++) {
        const char *found = strstr(query, known[at].name);
        if (found) *known[at].value = atol(found + strlen(known[at].name));
    }
    if (strstr(query, "reset=1")) {
        p->chats = p->extra = p->groups = 0;
        p->most = p->active;
        p->last_chat_s = 0;
        memset(p->seen, 0, sizeof p->seen);
    }
}

static int is(const struct connection *c, const char *start) { return !strncmp(c->in, start, strlen(start)); }

static void respond(struct connection *c)
{
    struct port *p = c->port;
    char text[2048];
    if (is(c, "POST /v1/chat/completions ")) {
        compute(c, 1);
        return;
    }
    if (is(c, "GET /count")) {
        snprintf(text, sizeof text,
                 "{\"chats\":%ld,\"extra\":%ld,\"groups\":%ld,\"most\":%ld,\"last_chat_s\":%.6f,\"now_s\":%.6f}",
                 p->chats, p->extra, p->groups, p->most, p->last_chat_s, now_us() / 1e6);
        answer(c, "200 OK", JSON, text);
        return;
    }
    if (is(c, "POST /set?")) {
        set(p, c->in);
        answer(c, "200 OK", JSON, "{}");
        return;
    }
    p->extra += is(c, "POST ");
    if (is(c, "POST /v1/completions ")) {
        compute(c, 0);
    } else if (is(c, "GET /health")) {
        answer(c, "200 OK", "text/plain", "");
    } else if (is(c, "GET /v1/models")) {
        answer(c, "200 OK", JSON,
               "{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"object\":\"model\",\"created\":1,\"owned_by\":\"x\","
               "\"max_model_len\":1048576}]}");
    } else if (is(c, "GET /metrics")) {
        snprintf(text, sizeof text,
                 "vllm:num_requests_running{model_name=\"mock\"} %ld\nvllm:num_requests_waiting{model_name=\"mock\"} 0\n"
                 "vllm:generation_tokens_total{model_name=\"mock\"} %ld\n", p->active, p->tokens);
        answer(c, "200 OK", "text/plain; version=0.0.4", text);
    } else if (is(c, "POST /tokenize")) {
        tokenize(c);
    } else {
        answer(c, "404 Not Found", JSON, "{\"detail\":\"Not Found\"}");
    }
}

/* -- connections ------------------------------------------------------------------------------- */

static void drop(struct connection *c)
{
    stop_waiting(c);
    if (c->answering) end_answer(c);
    close(c->socket);
    free(c);
}

/* Parse the head; 0 if it is not complete. */
static int head_complete(struct connection *c)
{
    char *end = memmem(c->in, c->have, "\r\n\r\n", 4);
    if (!end) return 0;
    c->head = end + 4 - c->in;
    c->length = 0;
    for (char *line = c->in; line < end; line = strstr(line, "\r\n") + 2)
        if (!strncasecmp(line, "content-length:", 15)) c->length = strtoul(line + 15, NULL, 10);
    c->body = c->have - c->head;
    return 1;
}

/* Read; 0 if the peer has left. The end of a long body is read over the middle of it. */
static int receive(struct connection *c)
{
    for (;;) {
        size_t free_bytes = sizeof c->in - 1 - c->have;
        char spill[65536];
        char *into = free_bytes ? c->in + c->have : spill;
        ssize_t got = recv(c->socket, into, free_bytes ? free_bytes : sizeof spill, 0);
        if (got == 0) return 0;
        if (got < 0) return errno == EAGAIN || errno == EINTR;
        if (into != spill) c->have += got;
        c->in[c->have] = 0;
        if (c->head) c->body += got;
        else if (!head_complete(c)) continue;
        if (c->body < c->length) continue;
        respond(c);
        c->have = c->head = c->body = 0;
    }
}

static void take_clients(struct port *p)
{
    for (;;) {
        int one = 1, client = accept4(p->socket, NULL, NULL, SOCK_NONBLOCK);
        if (client < 0) return;
        setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct connection *c = calloc(1, sizeof *c);
        c->socket = client;
        c->port = p;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_ADD, client, &event);
    }
}

static void listen_on(int number)
{
    struct port *p = &ports[port_count++];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(number),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1;
    p->chunks = 20;
    p->socket = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(p->socket, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(p->socket, (struct sockaddr *)&address, sizeof address) || listen(p->socket, 4096)) {
        fprintf(stderr, "cannot listen on %d: %s\n", number, strerror(errno));
        exit(1);
    }
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = p};
    epoll_ctl(poller, EPOLL_CTL_ADD, p->socket, &event);
}

static int is_port(void *thing) { return thing >= (void *)ports && thing < (void *)(ports + PORTS_MAX); }

static void serve(void)
{
    struct epoll_event events[256];
    struct timespec pause;
    long long left_us = first_due ? first_due->due_us - now_us() : 0;
    if (left_us < 0) left_us = 0;
    pause.tv_sec = left_us / 1000000;
    pause.tv_nsec = left_us % 1000000 * 1000;
    int count = epoll_pwait2(poller, events, 256, first_due ? &pause : NULL, NULL);
    for (int at = 0; at < count; at++) {
        if (is_port(events[at].data.ptr)) take_clients(events[at].data.ptr);
        else if (!receive(events[at].data.ptr)) drop(events[at].data.ptr);
    }
    long long now = now_us();
    while (first_due && first_due->due_us <= now) {
        struct connection *c = first_due;
        stop_waiting(c);
        next_piece(c);
    }
}

int main(int count, char **arguments)
{
    signal(SIGPIPE, SIG_IGN);
    poller = epoll_create1(0);
    if (count < 2 || count > PORTS_MAX) {
        fprintf(stderr, "usage: engine PORT [PORT ...]\n");
        return 2;
    }
    for (int at = 1; at < count; at++) listen_on(atoi(arguments[at]));
    for (;;) serve();
}
