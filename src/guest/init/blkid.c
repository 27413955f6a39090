// SPDX-License-Identifier: GPL-2.0-or-later
#include "guest/init/blkid.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/*
 * How it works
 *
 * One table says where each file system keeps its magic number, UUID and
 * label, all as absolute offsets that lie within one 4 KiB page. That page is
 * read once per entry and must be there whole, so no offset can be out of
 * bounds whatever the bytes are. A check function looks at what the table
 * cannot say. The first entry that fits wins; containers come first, since
 * what they hold is not to be mounted.
 *
 * Limits: no checksums are verified, no backup superblocks are looked for; a
 * partition table is read only to tell the identity of a partition that the
 * kernel has already found.
 */
#define PAGE 4096u

struct fs {
	const char *type;
	uint32_t magic_off;
	const char *magic;
	uint8_t magic_len;
	uint32_t uuid_off; /* 0: none */
	uint32_t label_off;
	uint16_t label_len;
	/* Looks closer at the page: false when it is not that file system after all. */
	bool (*check)(const uint8_t *page, struct blkid *out);
};

static uint16_t le16(const uint8_t *p)
{
	return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t le32(const uint8_t *p)
{
	return le16(p) | (uint32_t)le16(p + 2) << 16;
}

static uint64_t le64(const uint8_t *p)
{
	return le32(p) | (uint64_t)le32(p + 4) << 32;
}

static uint32_t be32(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void put_uuid(char *to, const uint8_t *u)
{
	static const uint8_t zero[16];

	if (memcmp(u, zero, 16))
		snprintf(to, 37, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
		         u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

/* A GUID's first three fields are stored as little-endian numbers. */
static void put_guid(char *to, const uint8_t *g)
{
	uint8_t u[16] = { g[3], g[2], g[1], g[0], g[5], g[4], g[7], g[6] };

	memcpy(u + 8, g + 8, 8);
	put_uuid(to, u);
}

/* Copies a label that ends with a NUL or after @len bytes, without the blanks that fill it up. */
static void put_label(char *to, const uint8_t *label, size_t len)
{
	size_t n = strnlen((const char *)label, len);

	while (n && label[n - 1] == ' ')
		n--;
	memcpy(to, label, n);
	to[n] = '\0';
}

/* UTF-16LE to UTF-8; @to has room for 3 bytes per unit and a NUL. Surrogates become '?'. */
static void put_utf16(char *to, const uint8_t *from, unsigned units)
{
	for (unsigned i = 0; i < units; i++) {
		unsigned c = le16(from + 2 * (size_t)i);

		if (!c)
			break;
		if (c >= 0xd800 && c < 0xe000)
			c = '?';
		if (c < 0x80) {
			*to++ = (char)c;
		} else if (c < 0x800) {
			*to++ = (char)(0xc0 | c >> 6);
			*to++ = (char)(0x80 | (c & 0x3f));
		} else {
			*to++ = (char)(0xe0 | c >> 12);
			*to++ = (char)(0x80 | (c >> 6 & 0x3f));
			*to++ = (char)(0x80 | (c & 0x3f));
		}
	}
	*to = '\0';
}

/* Which of the family: the least one that knows all its features. */
static bool check_ext(const uint8_t *page, struct blkid *out)
{
	enum { JOURNAL = 4, FILETYPE = 2, RECOVER = 4, JOURNAL_DEV = 8, META_BG = 0x10, EXT2_RO = 7 };
	const uint8_t *sb = page + 1024;
	uint32_t compat = le32(sb + 0x5c), incompat = le32(sb + 0x60), ro_compat = le32(sb + 0x64);

	if (!le32(sb) || !le32(sb + 4) || le32(sb + 0x18) > 6)
		return false;
	if (incompat & JOURNAL_DEV)
		out->type = "jbd";
	else if (ro_compat & ~(uint32_t)EXT2_RO || incompat & ~(uint32_t)(FILETYPE | RECOVER | META_BG))
		out->type = "ext4";
	else if (compat & JOURNAL)
		out->type = "ext3";
	else
		out->type = incompat & RECOVER ? "ext4" : "ext2";
	return true;
}

static bool check_xfs(const uint8_t *page, struct blkid *out)
{
	uint32_t size = be32(page + 4);

	(void)out;
	return size >= 512 && size <= 65536 && !(size & (size - 1));
}

static bool check_btrfs(const uint8_t *page, struct blkid *out)
{
	(void)out;
	return le64(page + 0x30) == 0x10000;
}

static bool check_swap(const uint8_t *page, struct blkid *out)
{
	(void)out;
	return le32(page + 1024) == 1;
}

/* Only a boot sector that looks like one: "FAT" in it would prove little. */
static bool fat(const uint8_t *page, struct blkid *out, unsigned serial, unsigned label)
{
	static const uint8_t none[11] = "NO NAME    ";
	uint16_t sector = le16(page + 11);
	uint8_t cluster = page[13];

	if (page[510] != 0x55 || page[511] != 0xaa || sector < 512 || sector > 4096 || sector & (sector - 1))
		return false;
	if (!cluster || cluster & (cluster - 1) || !page[16] || page[16] > 4)
		return false;
	snprintf(out->uuid, sizeof(out->uuid), "%04X-%04X", le16(page + serial + 2), le16(page + serial));
	if (memcmp(page + label, none, sizeof(none)))
		put_label(out->label, page + label, sizeof(none));
	return true;
}

static bool check_fat32(const uint8_t *page, struct blkid *out)
{
	return fat(page, out, 67, 71);
}

static bool check_fat16(const uint8_t *page, struct blkid *out)
{
	return fat(page, out, 39, 43);
}

static bool check_f2fs(const uint8_t *page, struct blkid *out)
{
	put_utf16(out->label, page + 1024 + 124, (sizeof(out->label) - 1) / 3);
	return true;
}

#define EXT 1024
#define BTR 0x10000
#define ISO 0x8000

static const struct fs known[] = {
	{ "crypto_LUKS", 0, "LUKS\xba\xbe", 6, 0, 0, 0, NULL },
	{ "LVM2_member", 512, "LABELONE", 8, 0, 0, 0, NULL },
	{ "ext4", EXT + 0x38, "\x53\xef", 2, EXT + 0x68, EXT + 0x78, 16, check_ext },
	{ "xfs", 0, "XFSB", 4, 32, 108, 12, check_xfs },
	{ "btrfs", BTR + 0x40, "_BHRfS_M", 8, BTR + 0x20, BTR + 0x12b, 256, check_btrfs },
	{ "swap", PAGE - 10, "SWAPSPACE2", 10, 1024 + 12, 1024 + 28, 16, check_swap },
	{ "erofs", EXT, "\xe2\xe1\xf5\xe0", 4, EXT + 48, EXT + 64, 16, NULL },
	{ "f2fs", EXT, "\x10\x20\xf5\xf2", 4, EXT + 108, 0, 0, check_f2fs },
	{ "squashfs", 0, "hsqs", 4, 0, 0, 0, NULL },
	{ "iso9660", ISO + 1, "CD001", 5, 0, ISO + 40, 32, NULL },
	{ "vfat", 82, "FAT32   ", 8, 0, 0, 0, check_fat32 },
	{ "vfat", 54, "FAT16   ", 8, 0, 0, 0, check_fat16 },
	{ "vfat", 54, "FAT12   ", 8, 0, 0, 0, check_fat16 },
};

static bool probe_one(const struct fs *fs, const uint8_t *page, struct blkid *out)
{
	if (memcmp(page + fs->magic_off % PAGE, fs->magic, fs->magic_len))
		return false;
	memset(out, 0, sizeof(*out));
	out->type = fs->type;
	if (fs->uuid_off)
		put_uuid(out->uuid, page + fs->uuid_off % PAGE);
	if (fs->label_len)
		put_label(out->label, page + fs->label_off % PAGE, fs->label_len);
	return !fs->check || fs->check(page, out);
}

bool blkid_probe(struct blk_reader *r, struct blkid *out)
{
	uint8_t page[PAGE];
	uint64_t have = UINT64_MAX;

	for (unsigned i = 0; i < sizeof(known) / sizeof(*known); i++) {
		uint64_t off = known[i].magic_off / PAGE * PAGE;

		if (off != have && r->read(r, off, page, PAGE)) {
			have = UINT64_MAX;
			continue;
		}
		have = off;
		if (probe_one(&known[i], page, out))
			return true;
	}
	memset(out, 0, sizeof(*out));
	return false;
}

/* From LBA @first to @last, if that can be. */
static void put_extent(struct partid *out, unsigned sector, uint64_t first, uint64_t last)
{
	if (!first || last < first || last >= UINT64_MAX / 2 / sector)
		return;
	out->start = first * sector;
	out->len = (last - first + 1) * sector;
}

/* UEFI specification, section 5.3: header at LBA 1, then an array of entries. */
static bool probe_gpt(struct blk_reader *r, unsigned sector, unsigned nr, struct partid *out)
{
	static const uint8_t none[16];
	uint8_t h[92], e[128];
	uint64_t lba;
	uint32_t n, size;

	if (r->read(r, sector, h, sizeof(h)) || memcmp(h, "EFI PART", 8))
		return false;
	lba = le64(h + 72);
	n = le32(h + 80);
	size = le32(h + 84);
	if (nr > n || size < sizeof(e) || size > PAGE || lba > UINT64_MAX / 2 / sector)
		return false;
	if (r->read(r, lba * sector + (uint64_t)(nr - 1) * size, e, sizeof(e)) || !memcmp(e, none, sizeof(none)))
		return false;
	put_guid(out->uuid, e + 16);
	put_utf16(out->name, e + 56, 36);
	put_extent(out, sector, le64(e + 32), le64(e + 40));
	return true;
}

bool partid_probe(struct blk_reader *r, unsigned sector, unsigned nr, struct partid *out)
{
	enum { TABLE = 446, TYPE = 4, PROTECTIVE = 0xee };
	uint8_t mbr[512];

	memset(out, 0, sizeof(*out));
	if (!nr || sector < 512 || r->read(r, 0, mbr, sizeof(mbr)) || mbr[510] != 0x55 || mbr[511] != 0xaa)
		return false;
	for (unsigned i = 0; i < 4; i++)
		if (mbr[TABLE + 16 * i + TYPE] == PROTECTIVE)
			return probe_gpt(r, sector, nr, out);
	if (nr <= 4 && le32(mbr + TABLE + 16 * (nr - 1) + 12)) {
		const uint8_t *e = mbr + TABLE + 16 * (nr - 1);

		put_extent(out, sector, le32(e + 8), (uint64_t)le32(e + 8) + le32(e + 12) - 1);
	}
	if (!le32(mbr + 440))
		return false;
	snprintf(out->uuid, sizeof(out->uuid), "%08x-%02x", le32(mbr + 440), nr);
	return true;
}
