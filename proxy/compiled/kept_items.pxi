# A part of walk.pyx: what is kept of the resources, ACLs and errors that ``items.pxi`` reads, and handed to the exchange.

cdef int keep_error(ItemWalk *items) except -1:
    """Count the error of the current element, and keep it where there is room."""
    cdef Level *own = &items.levels[items.depth]
    cdef Level *named = own
    cdef Level *parent
    cdef int depth = items.depth
    cdef int kind = CLASSES[own.error_code] if 0 <= own.error_code < 256 else FAILURE
    items.counts[kind] += 1
    if items.kept[kind] >= MOST[kind]:
        return 0
    items.kept[kind] += 1
    while depth > 1 and named.name_size < 0 and not named.has_id:  # a partition: the topic is around it
        depth -= 1
        named = &items.levels[depth]
    if named.name_size < 0 and not named.has_id:
        named = own
        depth = items.depth
    parent = NULL
    while depth > 1:
        depth -= 1
        if items.levels[depth].name_size >= 0:
            parent = &items.levels[depth]
            break
    append_to(
        &items.found,
        ItemErrorFacts(
            own.error_code,
            TYPES[named.kind],
            name_of(named),
            id_of(named),
            own.partition if own.has_partition else -1,
            own.index,
            TYPES[parent.kind] if parent != NULL else None,
            name_of(parent) if parent != NULL else None,
        ),
    )
    return 0


cdef object id_of(const Level *level):
    """None too for the id of zeros that stands where there is a name alone."""
    if not level.has_id or level.name_size >= 0 and not memcmp(level.topic_id, NO_ID, 16):
        return None
    return (<const char *>level.topic_id)[:16]


cdef object name_of(const Level *level):
    return None if level.name_size < 0 else (<const char *>level.name)[:level.name_size]


cdef Level *parent_of(ItemWalk *items, int depth) noexcept:
    """The nearest level around ``depth`` that has a name, or NULL."""
    while depth > 0:
        depth -= 1
        if items.levels[depth].name_size >= 0:
            return &items.levels[depth]
    return NULL


cdef object enum_name(tuple names, int32_t number):
    """None for a negative ``number``."""
    return None if number < 0 else names[number] if number < len(names) else "UNKNOWN"


cdef int keep_resource(ItemWalk *items, const Level *level, object name, object topic_id) except -1:
    """Count a resource of the current level, and keep it where there is room. Returns 1."""
    cdef Level *parent
    items.resources += 1
    if items.resources > items.most:
        return 1
    parent = parent_of(items, items.depth)
    index = items.levels[min(items.depth, 1)].index
    parent_type = TYPES[parent.kind] if parent != NULL else None
    parent_name = name_of(parent) if parent != NULL else None
    if level.op_type < 0:
        resource = RequestResource(TYPES[level.kind], name, topic_id, index, parent_type, parent_name)
    else:
        op_type, mechanism = enum_name(OP_TYPES, level.op_type), enum_name(MECHANISMS, level.mechanism)
        resource = RequestResource(
            TYPES[level.kind], name, topic_id, index, parent_type, parent_name, op_type, mechanism
        )
    append_to(&items.found, resource)
    return 1


cdef int set_acl_text(ItemWalk *items, int32_t place, const uint8_t *start, int64_t size) except -1:
    """Keep a text of the current ACL. Returns 1."""
    cdef bytes value
    if size >= 0:
        value = (<const char *>start)[:size]
        Py_INCREF(value)
        items.acl_texts[place] = <PyObject *>value
    return 1


cdef object acl_text(const ItemWalk *items, int32_t place):
    return None if items.acl_texts[place] == NULL else <object>items.acl_texts[place]


cdef int keep_acl(ItemWalk *items, const Level *level, bint response) except -1:
    """Count the current ACL, whose resource is the current level, and keep it where there is room. Returns 1."""
    cdef int64_t count
    cdef int at
    if response:
        items.matching_acls += 1
        count = items.matching_acls
    else:
        items.resources += 1
        count = items.resources
    if count <= items.most:
        items.acls += 1
        append_to(
            &items.found_acls if response else &items.found,
            RequestResource(
                "user",
                acl_text(items, 0),
                None,
                items.levels[min(items.depth, 1)].index,
                TYPES[level.kind],
                name_of(level),
                enum_name(OP_TYPES, DELETED if response else -1),
                None,
                Acl(
                    enum_name(PATTERN_TYPES, items.acl_numbers[0]),
                    acl_text(items, 1),
                    ACL_OPERATIONS[items.acl_numbers[1] if items.acl_numbers[1] < len(ACL_OPERATIONS) else 0],
                    enum_name(PERMISSION_TYPES, items.acl_numbers[2]),
                    level.error_code if response else 0,
                ),
            ),
        )
    for at in range(MAX_ACL_TEXTS):
        Py_XDECREF(items.acl_texts[at])
        items.acl_texts[at] = NULL
    items.acl_numbers[0], items.acl_numbers[1], items.acl_numbers[2] = LITERAL, 0, 0
    return 1


cdef inline int append_to(PyObject **found, object one) except -1:
    """Append to a list that is made with its first element."""
    cdef list made
    if found[0] == NULL:
        made = []
        Py_INCREF(made)
        found[0] = <PyObject *>made
    (<list>found[0]).append(one)
    return 0


cdef int keep_commit(ItemWalk *items, const Level *level) except -1:
    """Count a committed offset of the topic around the current partition, and keep it where there is room. Returns 1."""
    cdef Level *topic = &items.levels[items.depth - 1]
    items.commits += 1
    if items.commits > MAX_COMMITS:
        return 1
    name = name_of(topic)
    append_to(
        &items.found_commits,
        CommittedOffset(id_of(topic) if name is None else name, name is None, level.partition, level.offset),
    )
    return 1


cdef int set_field(ItemWalk *items, int32_t field, const uint8_t *start, int64_t size) except -1:
    """Keep a text of the whole request. One that comes again, with another value, is None. Returns 1."""
    cdef bytes value
    if size < 0 or items.repeated[field]:
        return 1
    value = (<const char *>start)[:size]
    if items.fields[field] == NULL:
        Py_INCREF(value)
        items.fields[field] = <PyObject *>value
    elif <bytes>items.fields[field] != value:
        items.repeated[field] = True
    return 1


cdef object field_of(const ItemWalk *items, int32_t field):
    if items.fields[field] == NULL or items.repeated[field]:
        return None
    return <object>items.fields[field]


cdef int64_t hand_over(Walk *walk, Exchange exchange) except -1:
    """Give the exchange what was found. Returns the bytes that it is charged with."""
    cdef ItemWalk *items = walk.items
    if walk.body.kind == REQUEST_RESOURCES:
        exchange.resources = RequestResources(
            () if items.found == NULL else tuple(<list>items.found),
            items.resources,
            () if items.found_commits == NULL else tuple(<list>items.found_commits),
            items.commits,
            field_of(items, 0),
            field_of(items, 1),
            field_of(items, 2),
            field_of(items, 3),
            items.generation,
            items.validate_only,
        )
        return size_of_items(items)
    if items.error_code:
        exchange.error_code = items.error_code
    if items.found == NULL and items.found_acls == NULL:
        return 0
    exchange.item_errors = ItemErrors(
        () if items.found == NULL else tuple(<list>items.found),
        items.counts[FAILURE],
        items.counts[RETRIABLE],
        items.counts[PROTOCOL],
        () if items.found_acls == NULL else tuple(<list>items.found_acls),
        items.matching_acls,
    )
    return size_of_items(items)


cdef inline int64_t size_of_items(const ItemWalk *items) noexcept:
    """An ACL is charged twice: it has a third text."""
    cdef int64_t kept = items.kept[FAILURE] + items.kept[RETRIABLE] + items.kept[PROTOCOL] + items.acls
    cdef int at
    kept += min(items.resources, items.most) + min(items.commits, MAX_COMMITS) + min(items.matching_acls, items.most)
    for at in range(MAX_FIELDS):
        kept += items.fields[at] != NULL
    return (PARTITION_BYTES + 2 * MAX_NAME) * kept
